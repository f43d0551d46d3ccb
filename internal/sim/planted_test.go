package sim

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// mutation is a mistake that is planted into the sources, to see that it is
// found. The sources that are shipped know nothing of it: the compiler is given
// others in their place (go build -overlay), in which planted(name) says whether
// this one is to be made.
type mutation struct {
	name   string
	broken string // the rule of design.md section 3, or the promise
	within int    // seeds, from 1 on; of those about leases (Options.Leases) for what is
	file   string // below internal
	old    string // occurs once
	new    string
}

// mutations are one or more for each rule and each promise that the simulation
// stands for. How many seeds they need was measured; within leaves some room.
var mutations = []mutation{
	{"early-owner", "rule 1: nothing is evaluated before the own first entry is applied", 200, "shard/shard.go",
		"	return s.leader && s.firstOwn != 0 && s.table.Applied().Index >= s.firstOwn",
		"	if planted(\"early-owner\") && s.leader && s.firstOwn != 0 {\n		s.startOwning()\n		return true\n	}\n	return s.leader && s.firstOwn != 0 && s.table.Applied().Index >= s.firstOwn"},
	{"evaluated-twice", "rule 1: what was evaluated is not proposed again", 200, "shard/ready.go",
		"	for _, r := range s.waiting {\n		s.fail(r, errLostOwner, out)\n	}\n",
		"	for _, r := range s.waiting {\n		if planted(\"evaluated-twice\") && r.Kind == Ops {\n			r.reset()\n			s.queue = append(s.queue, r)\n			continue\n		}\n		s.fail(r, errLostOwner, out)\n	}\n"},
	{"budget-after", "rule 2: what Raft refuses was never evaluated", 200, "shard/evaluate.go",
		"		s.refused(out)\n		return false\n",
		"		if planted(\"budget-after\") {\n			return false\n		}\n		s.refused(out)\n		return false\n"},
	{"budget-after", "", 0, "shard/shard.go",
		"		MaxUncommittedEntriesSize: math.MaxUint64,",
		"		MaxUncommittedEntriesSize: map[bool]uint64{false: math.MaxUint64, true: 100}[planted(\"budget-after\")],"},
	{"early-answer", "rule 3: a reply waits for the commit", 200, "shard/request.go",
		`(r.dep <= s.commit || early && r.Kind == Ops)`,
		`(r.dep <= s.commit || (early || planted("early-answer")) && r.Kind == Ops)`},
	{"deposed-answer", "rule 3: only the leader of the term releases a reply", 500, "shard/ready.go",
		"	clear(s.waiting)\n	s.waiting = s.waiting[:0]\n	for _, r := range s.takeStarted()",
		"	if planted(\"deposed-answer\") {\n		out.Done = out.Done[:len(out.Done)-len(s.waiting)]\n	} else {\n		clear(s.waiting)\n		s.waiting = s.waiting[:0]\n	}\n	for _, r := range s.takeStarted()"},
	{"unsynced-vote", "durable: what a replica says waits for its disk", 200, "shard/ready.go",
		"		case raft.LocalAppendThread:\n",
		"		case raft.LocalAppendThread:\n			if planted(\"unsynced-vote\") && raft.IsEmptySnap(m.GetSnapshot()) {\n				m.Responses = slices.DeleteFunc(m.Responses, func(r *raftpb.Message) bool {\n					if r.GetTo() == s.cfg.RaftID {\n						return false\n					}\n					out.Messages = append(out.Messages, r)\n					return true\n				})\n			}\n"},
	{"no-fence", "rule 4: that the owner is the owner is confirmed before a read is answered", 200, "shard/lease.go",
		"	r.fence = s.fenceSeq + 1\n	s.fenceWanted = true\n}\n\n// renew says",
		"	r.fence = s.fenceSeq + 1\n	if planted(\"no-fence\") {\n		r.fence = 0\n	}\n	s.fenceWanted = true\n}\n\n// renew says"},
	{"uncommitted-read", "rule 4: all that a read saw is committed", 200, "shard/evaluate.go",
		`			r.dep = max(r.dep, inflight) // all it saw must be committed (rules 4, 5)`,
		`			if !planted("uncommitted-read") {
				r.dep = max(r.dep, inflight)
			}`},
	{"unfenced-refusal", "rule 5: a refusal is a read", 200, "shard/evaluate.go",
		"			read = true\n			continue\n		}\n		ref, first",
		"			read = !planted(\"unfenced-refusal\") || op.Kind == felix.Get\n			continue\n		}\n		ref, first"},
	{"kept-flight", "rule 6: what is in flight is kept apart, and forgotten", 200, "store/table.go",
		"	if e.flight == 0 {\n		return // staged again",
		"	if planted(\"kept-flight\") {\n		var c record.Cell\n		t.Newest(ref, &c)\n		e.sum, e.version = c.Sum, c.CounterVer\n	}\n	if e.flight == 0 {\n		return // staged again"},
	{"unfenced-scan", "rule 4: a scan is a read", 200, "shard/evaluate.go",
		"		r.NowMillis = s.Now()\n		r.dep = s.lastIndex\n		s.needFence(r)\n",
		"		r.NowMillis = s.Now()\n		r.dep = s.lastIndex\n		if !planted(\"unfenced-scan\") {\n			s.needFence(r)\n		}\n"},
	{"stored-flight", "rule 6: a checkpoint sees applied values only", 200, "store/table_capture.go",
		"	t.readApplied(e, &r.Cell)\n	key := t.keyOf(e)\n",
		"	t.readApplied(e, &r.Cell)\n	if planted(\"stored-flight\") && e.flight != 0 {\n		r.Cell = t.flights[e.flight].cell\n	}\n	key := t.keyOf(e)\n"},
	{"late-capture", "durable: a checkpoint is of one moment", 200, "store/table_apply.go",
		"		if e.flags&(old|flagCaptured) == old {\n			c.capture(t, e)\n		}\n	}\n	if e.flags&now",
		"		if e.flags&(old|flagCaptured) == old && !planted(\"late-capture\") {\n			c.capture(t, e)\n		}\n	}\n	if e.flags&now"},
	{"same-versions", "rule 7: versions are never used twice", 200, "record/cell.go",
		`	return max(term, (highest+longestTail)>>40+1) << 40`,
		`	if planted("same-versions") {
		return highest + 1
	}
	return max(term, (highest+longestTail)>>40+1) << 40`},
	{"rude-handover", "rule 8: what was begun is finished before ownership is handed over", 200, "shard/handover.go",
		`!h.asked && h.ticks > 0 && s.underWay()`,
		`!h.asked && h.ticks > 0 && s.underWay() && !planted("rude-handover")`},
	{"deaf-handover", "rule 8: nothing is begun while ownership is handed over", 200, "shard/hold.go",
		`case !s.eligible || s.handover.to != 0:`,
		`case !s.eligible || s.handover.to != 0 && !planted("deaf-handover"):`},
	{"clock-back", "time never goes back", 200, "shard/clock.go",
		`	if c.last < ceiling {`,
		`	if c.last < ceiling && !planted("clock-back") {`},
	{"late-lease", "leases: counted from before the round was sent", 300, "shard/lease.go",
		"		s.lease.until = max(s.lease.until, s.fenceBegan+s.cfg.LeaseFor)\n",
		"		s.lease.until = max(s.lease.until, s.fenceBegan+s.cfg.LeaseFor)\n		if planted(\"late-lease\") {\n			s.lease.until = s.now.Mono + s.cfg.LeaseFor\n		}\n"},
	{"kept-lease", "leases: given up before a transfer", 300, "shard/handover.go",
		"		s.lease.bar()\n",
		"		if !planted(\"kept-lease\") {\n			s.lease.bar()\n		}\n"},
	{"unchecked-lease", "leases: looked at after evaluating", 300, "shard/lease.go",
		"	holds := now.Mono < s.lease.until\n",
		"	holds := now.Mono < s.lease.until || planted(\"unchecked-lease\")\n"},
	{"hasty-vote", "leases: a restarted replica neither votes nor campaigns", 900, "shard/shard.go",
		"campaigns: true, silent: cfg.SilentTicks,",
		"campaigns: true, silent: map[bool]int{false: cfg.SilentTicks}[planted(\"hasty-vote\")],"},
	{"no-margin", "leases: shorter than an election on any clock", 800, "shard/shard.go",
		"	applied := cfg.Table.Applied()\n	conf := &raftpb.ConfState{}\n",
		"	if planted(\"no-margin\") {\n		cfg.LeaseFor = cfg.LeaseFor * 100 / 63\n	}\n	applied := cfg.Table.Applied()\n	conf := &raftpb.ConfState{}\n"},
	{"long-tail", "leader caches: what can be lost is a bounded tail", 400, "shard/request.go",
		`			return s.now.Mono-p.born <= felix.LeaderTail`,
		`			return planted("long-tail") || s.now.Mono-p.born <= felix.LeaderTail`},
	{"expired-early", "what has not expired is there", 100, "engine/engine.go",
		`(c.ValueExpiry == 0 || c.ValueExpiry > e.time())`,
		`(c.ValueExpiry == 0 || c.ValueExpiry > e.time()+map[bool]int64{true: 200}[planted("expired-early")])`},
	{"swept-early", "a sweep deletes only what has expired", 100, "engine/engine.go",
		"	before := cell.Has\n	if cell.Has&record.HasCounter",
		"	before := cell.Has\n	if planted(\"swept-early\") {\n		now += 500\n	}\n	if cell.Has&record.HasCounter"},
	{"moved-expiry", "a condition on the expiry is looked at", 100, "engine/ops.go",
		"	if cond == 0 {\n		return true\n	}\n",
		"	if cond == 0 || planted(\"moved-expiry\") {\n		return true\n	}\n"},
	{"dropped-both", "a counter and a value of the same key are unrelated", 100, "engine/engine.go",
		`	if e.op.View != felix.ViewCounter && before&record.HasValue != 0 {`,
		`	if (e.op.View != felix.ViewCounter || planted("dropped-both")) && before&record.HasValue != 0 {`},
	{"hidden-value", "a write in the Redis view replaces both records", 100, "engine/engine.go",
		`	if e.op.View == felix.ViewRedis && c.Has&record.HasValue != 0 {`,
		`	if e.op.View == felix.ViewRedis && c.Has&record.HasValue != 0 && !planted("hidden-value") {`},
	{"torn-group", "an atomic group that is stopped changes nothing", 100, "shard/group.go",
		"			r.abort(positions, i)\n",
		"			if b := s.groupBytes(cells); planted(\"torn-group\") && b > 0 {\n				s.stageGroup(cells)\n				s.entry.bytes += b\n				r.wrote(s.entry.index)\n			}\n			r.abort(positions, i)\n"},
	{"unstopped-group", "an atomic group is applied as a whole, or not at all", 100, "shard/group.go",
		"		if g.Stops(op, reply) {\n",
		"		if g.Stops(op, reply) && !planted(\"unstopped-group\") {\n"},
	{"overflow", "an add that would overflow is refused", 100, "engine/ops.go",
		`	} else if delta > 0 && sum > math.MaxInt64-delta ||`,
		`	} else if !planted("overflow") && delta > 0 && sum > math.MaxInt64-delta ||`},
	{"seen-after-clear", "a clear takes everything that was there", 200, "shard/evaluate.go",
		`n > 0 && s.proposals[n-1].clear {`,
		`n > 0 && s.proposals[n-1].clear && !planted("seen-after-clear") {`},
	{"miscount", "counts are exact", 100, "record/cell.go",
		"		Keys:     bit(after, HasCounter|HasValue) - bit(before, HasCounter|HasValue),",
		"		Keys:     bit(after, HasCounter|HasValue) - bit(before, map[bool]Has{false: HasCounter | HasValue, true: HasCounter}[planted(\"miscount\")]),"},
	{"expired-seen", "what has expired is gone at once", 100, "engine/engine.go",
		`(c.CounterExpiry == 0 || c.CounterExpiry > e.time())`,
		`(c.CounterExpiry == 0 || planted("expired-seen") || c.CounterExpiry > e.time())`},
	{"none-is-zero", "a counter that was never written is none, not 0", 100, "engine/engine.go",
		"	r, c := e.r, e.cell\n	switch seen {",
		"	r, c := e.r, e.cell\n	if planted(\"none-is-zero\") && seen == 0 && e.op.View == felix.ViewCounter {\n		r.Found = felix.CounterRecord\n	}\n	switch seen {"},
	{"wrong-version", "compare-and-set compares", 100, "engine/ops.go",
		"	met := e.conditionMet(seen)\n	if !met || e.op.ReturnOld {\n		e.show(seen)\n	}\n	if !met {\n		return false\n	}\n	if e.op.TTL == felix.TTLKeep {",
		"	met := e.conditionMet(seen) || planted(\"wrong-version\") && seen != 0\n	if !met || e.op.ReturnOld {\n		e.show(seen)\n	}\n	if !met {\n		return false\n	}\n	if e.op.TTL == felix.TTLKeep {"},
	{"unknown-refused", "an outcome is unknown, or nothing was applied", 200, "shard/request.go",
		`case reply.Applied && !reply.Replayed && r.Batch.Ops[p].Mutates():`,
		`case reply.Applied && !reply.Replayed && r.Batch.Ops[p].Mutates() && !planted("unknown-refused"):`},
	{"forgotten-record", "replicas are equal", 200, "store/table_apply.go",
		`		e.sum, e.expiry, e.version = w.Sum, w.Expiry, version`,
		`		e.sum, e.expiry, e.version = w.Sum, w.Expiry, version
		if planted("forgotten-record") && e.flight == 0 {
			e.expiry = 0
		}`},
	{"lost-chain", "the hash of what was applied goes on through crashes and snapshots", 100, "store/chain.go",
		"	if t.applied.Chain.Base == 0 {",
		"	if t.applied.Chain.Base == 0 || planted(\"lost-chain\") {"},
	{"unmet-bound", "an add is applied within its bounds only", 100, "engine/bounds.go",
		"	above := over || !under && sum+delta > b.Max",
		"	above := over || !under && sum+delta > b.Max && !planted(\"unmet-bound\")"},
	{"small-majority", "quorum: a majority decides", 200, "shard/ready.go",
		"	if commit := rd.HardState.GetCommit(); commit > s.commit {",
		"	if planted(\"small-majority\") && s.leader {\n		s.commit = max(s.commit, s.lastIndex)\n	}\n	if commit := rd.HardState.GetCommit(); commit > s.commit {"},
}

// overlay writes the sources with all mistakes in them, and the file that tells
// the compiler.
func overlay(t *testing.T, dir string) string {
	t.Helper()
	internal, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	sources, replace := map[string]string{}, map[string]string{}
	for _, m := range mutations {
		path := filepath.Join(internal, m.file)
		if sources[path] == "" {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			sources[path] = string(text)
		}
		if n := strings.Count(sources[path], m.old); n != 1 {
			t.Fatalf("%s is to be planted into %s, where its place is found %d times: it has to follow the source", m.name, m.file, n)
		}
		sources[path] = strings.Replace(sources[path], m.old, m.new, 1)
		pkg := filepath.Dir(path)
		sources[filepath.Join(pkg, "planted.go")] = fmt.Sprintf("package %s\n\nimport \"os\"\n\nvar plantedName = os.Getenv(\"FELIX_PLANTED\")\n\n"+
			"func planted(name string) bool { return plantedName == name }\n", filepath.Base(pkg))
	}
	for path, text := range sources {
		file := filepath.Join(dir, filepath.Base(filepath.Dir(path))+"_"+filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace[path] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestPlantedMistakesAreFound proves the proof: a check that does not see its
// mistake is worth nothing.
func TestPlantedMistakesAreFound(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "sim.test")
	if out, err := exec.Command("go", "test", "-c", "-overlay", overlay(t, dir), "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	found := regexp.MustCompile(`seed (\d+): (.*)`)
	for _, m := range mutations {
		if m.broken == "" {
			continue // a part of the one before
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			about := strings.HasPrefix(m.broken, "leases: ")
			cmd := exec.Command(binary, "-test.run=^TestSeeds$", "-sim.seeds="+strconv.Itoa(m.within), fmt.Sprintf("-sim.leases=%v", about))
			cmd.Env = append(os.Environ(), "FELIX_PLANTED="+m.name, "TMPDIR="+t.TempDir())
			out, err := cmd.CombinedOutput()
			seed := found.FindSubmatch(out)
			if err == nil || seed == nil {
				t.Fatalf("%s: %d seeds find nothing wrong with %s (%v)\n%s", m.broken, m.within, m.name, err, out)
			}
			t.Logf("seed %s: %s", seed[1], seed[2])
		})
	}
}

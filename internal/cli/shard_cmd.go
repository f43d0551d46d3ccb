package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/felix-go/felix"
)

// shardJSON is a shard in --json answers; the same names as in the HTTP API.
type shardJSON struct {
	Tenant    string        `json:"tenant"`
	Namespace string        `json:"namespace"`
	Cache     string        `json:"cache"`
	Meta      bool          `json:"meta"`
	Number    int           `json:"number"`
	ID        uint64        `json:"id,string"`
	Owner     uint64        `json:"owner,string"`
	Preferred uint64        `json:"preferred,string"`
	Term      uint64        `json:"term,string"`
	Commit    uint64        `json:"commit,string"`
	Replicas  []replicaJSON `json:"replicas"`
}

type replicaJSON struct {
	Node     uint64 `json:"node,string"`
	RaftID   uint64 `json:"raftId,string"`
	Want     string `json:"want"`
	Have     string `json:"have"`
	Match    uint64 `json:"match,string"`
	Lag      uint64 `json:"lag,string"`
	Active   bool   `json:"active"`
	Sent     *int64 `json:"snapshotSentBytes,string,omitempty"`
	Estimate *int64 `json:"snapshotEstimateBytes,string,omitempty"`
	Differs  bool   `json:"differs"`
}

func shardToJSON(s *felix.ShardInfo) shardJSON {
	j := shardJSON{Tenant: s.Tenant, Namespace: s.Namespace, Cache: s.Cache, Meta: s.Meta, Number: s.Number, ID: s.ID,
		Owner: s.Owner, Preferred: s.Preferred, Term: s.Term, Commit: s.Commit, Replicas: make([]replicaJSON, len(s.Replicas))}
	for i, r := range s.Replicas {
		j.Replicas[i] = replicaJSON{Node: r.Node, RaftID: r.RaftID, Want: string(r.Want), Have: string(r.Have), Match: r.Match, Lag: r.Lag, Active: r.Active, Differs: r.Differs}
		if r.Snapshot != nil {
			j.Replicas[i].Sent, j.Replicas[i].Estimate = &r.Snapshot.SentBytes, &r.Snapshot.EstimateBytes
		}
	}
	return j
}

func (a *app) shardCommands() *cobra.Command {
	return a.group(&cobra.Command{Use: "shard", Short: "Show where shards are, and move them"},
		a.shardList(), a.shardMove(), a.shardPrefer())
}

func (a *app) shardList() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "ls [CACHE]",
		Short: "List the shards of a cache, or all, and where their replicas are",
		Long: `Lists the shards of a cache, or of all caches of all tenants and the metadata's
own shard. A replica is shown as its node, and in parentheses what is not as it
should be: "joining" has no vote yet, "leaving" shall not be there any more,
"silent" was not heard of lately, "differs" has not the same as the owner, which
calls for you (docs/operations.md), "behind N" lacks N log entries, and a snapshot
on its way to it is shown with its bytes.`,
		Example: "  felixctl shard ls\n  felixctl shard ls limits --json",
	}, 0, 1, func(cmd *cobra.Command, args []string) error {
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		var shards []felix.ShardInfo
		if len(args) == 0 {
			shards, err = c.Shards(cmd.Context())
		} else {
			shards, err = c.CacheShards(cmd.Context(), s.tenant, s.namespace, args[0])
		}
		if err != nil {
			return err
		}
		list := make([]shardJSON, len(shards))
		for i := range shards {
			list[i] = shardToJSON(&shards[i])
		}
		return a.answer(struct {
			Shards []shardJSON `json:"shards"`
		}{list}, func(w io.Writer) {
			t := table(w)
			fmt.Fprintln(t, "SHARD\tID\tOWNER\tPREFERRED\tTERM\tCOMMIT\tREPLICAS")
			for i := range shards {
				describeShard(t, &shards[i], len(args) > 0)
			}
			_ = t.Flush() // w keeps the error until run flushes it
		})
	})
}

func describeShard(w io.Writer, s *felix.ShardInfo, short bool) {
	name := shardName(s)
	if short {
		name = fmt.Sprintf("%s/%d", s.Cache, s.Number)
	}
	replicas := make([]string, len(s.Replicas))
	for i := range s.Replicas {
		replicas[i] = describeReplica(&s.Replicas[i], s.Owner != 0)
	}
	fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\t%d\t%s\n", printable(name), s.ID, nodeOrDash(s.Owner), s.Preferred, s.Term, s.Commit, strings.Join(replicas, " "))
}

func shardName(s *felix.ShardInfo) string {
	if s.Meta {
		return "metadata"
	}
	return fmt.Sprintf("%s/%d", s.Scope, s.Number)
}

func nodeOrDash(id uint64) string {
	if id == 0 {
		return "-"
	}
	return strconv.FormatUint(id, 10)
}

// describeReplica is a replica's node, and what is not as it should be. Only an
// owner knows how far a replica is.
func describeReplica(r *felix.ReplicaInfo, owned bool) string {
	var notes []string
	note := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	note(r.Want == felix.ReplicaGone, "leaving")
	note(r.Want == felix.ReplicaVoter && r.Have != felix.ReplicaVoter, "joining")
	note(r.Want == felix.ReplicaLearner, "learner")
	note(owned && !r.Active, "silent")
	note(r.Differs, "differs")
	note(r.Lag > 0, "behind %d", r.Lag)
	if s := r.Snapshot; s != nil {
		note(true, "snapshot %d of about %d bytes", s.SentBytes, max(s.SentBytes, s.EstimateBytes))
	}
	if len(notes) == 0 {
		return strconv.FormatUint(r.Node, 10)
	}
	return fmt.Sprintf("%d(%s)", r.Node, strings.Join(notes, ", "))
}

// parseShard reads CACHE/N. The error is invalid_argument.
func parseShard(text string) (cache string, number int, err error) {
	cache, digits, found := strings.Cut(text, "/")
	n, err := strconv.ParseUint(digits, 10, 16)
	if !found || cache == "" || err != nil {
		return "", 0, felix.Errorf(felix.InvalidArgument, "%q is no shard: give CACHE/N, such as limits/0", text)
	}
	return cache, int(n), nil
}

func (a *app) shardMove() *cobra.Command {
	var from, to uint64
	c := leaf(&cobra.Command{
		Use:   "move CACHE/N --from ID --to ID",
		Short: "Give a shard's replica to another broker, online",
		Long: `Gives the replica of a shard that one broker has to another one. It answers when
that is begun; the cluster goes on by itself, and felixctl shard ls shows how far
it is.`,
		Example: "  felixctl shard move limits/0 --from 1 --to 4",
	}, 1, 1, func(cmd *cobra.Command, args []string) error {
		cache, number, err := parseShard(args[0])
		if err != nil {
			return err
		}
		if from == 0 || to == 0 {
			return felix.Errorf(felix.InvalidArgument, "say --from ID and --to ID: nodes, as felixctl node ls shows")
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		shard, err := c.ShardMove(cmd.Context(), s.tenant, s.namespace, cache, number, from, to)
		if err != nil {
			return err
		}
		return a.answerShard(shard, fmt.Sprintf("moving %s from node %d to node %d", shardName(&shard), from, to))
	})
	c.Flags().Uint64Var(&from, "from", 0, "`id` of the node that has the replica")
	c.Flags().Uint64Var(&to, "to", 0, "`id` of the node that shall have it")
	return c
}

func (a *app) shardPrefer() *cobra.Command {
	return leaf(&cobra.Command{
		Use:     "prefer CACHE/N ID",
		Short:   "Say which of the brokers with a replica should own a shard",
		Example: "  felixctl shard prefer limits/0 2",
	}, 2, 2, func(cmd *cobra.Command, args []string) error {
		cache, number, err := parseShard(args[0])
		if err != nil {
			return err
		}
		node, err := parseNode(args[1])
		if err != nil {
			return err
		}
		c, s, err := a.connect(cmd)
		if err != nil {
			return err
		}
		defer c.Close()
		shard, err := c.ShardPrefer(cmd.Context(), s.tenant, s.namespace, cache, number, node)
		if err != nil {
			return err
		}
		return a.answerShard(shard, fmt.Sprintf("node %d should own %s", node, shardName(&shard)))
	})
}

func (a *app) answerShard(shard felix.ShardInfo, words string) error {
	return a.answer(struct {
		Shard shardJSON `json:"shard"`
	}{shardToJSON(&shard)}, func(w io.Writer) { fmt.Fprintln(w, printable(words)) })
}

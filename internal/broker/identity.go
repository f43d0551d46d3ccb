package broker

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/felix-go/felix/internal/peer"
)

// dataFormat is the layout of the data directory that this build writes. A
// newer one is refused, an older one is migrated.
const dataFormat = 2

const (
	// firstNode is the node id of a broker that nobody gave another one.
	firstNode = 1
	// maxNodeID bounds node ids: they have to be told, typed and read.
	maxNodeID = 1 << 32
)

// identity is the file felix.json of a data directory: whose it is. What the
// cluster knows of the broker is in the metadata; this is what a broker has to
// know before it can read that.
type identity struct {
	Format  int    `json:"format"`
	StoreID string `json:"store_id"` // random: a copied or wiped directory is told apart
	// ClusterID is empty until the broker belongs to a cluster.
	ClusterID string `json:"cluster_id"`
	NodeID    uint64 `json:"node_id"`
	// Formed says that the broker may vote: before that, not all of the first
	// brokers may know the cluster id yet.
	Formed bool `json:"formed"`
	// Bootstrapped says that the metadata's first state has been on disk. If it
	// is not there any more it was lost, and is never made a second time.
	Bootstrapped bool `json:"bootstrapped"`
	// Starts counts the starts on the directory.
	Starts uint64 `json:"starts"`
	// Recorded are the starts that the metadata may have recorded as the last one:
	// the first is known to have been, the others were about to be. If it has
	// recorded another one this directory is an old copy that was put back.
	Recorded []peer.Start `json:"recorded,omitempty"`
	// Founders are the first brokers of the cluster. Only these have them.
	Founders []founder `json:"founders,omitempty"`
	// Seeds are peer addresses of brokers that a broker which has joined can ask
	// until it can read the metadata.
	Seeds []string `json:"seeds,omitempty"`
	// Distrusted is why what the directory holds cannot be trusted, or empty.
	Distrusted string `json:"distrusted,omitempty"`

	// more are fields that a newer build has written. They are kept.
	more map[string]json.RawMessage
}

// founder is one of the brokers that form a cluster.
type founder struct {
	ID       uint64 `json:"id"`
	StoreID  string `json:"store_id"`
	PeerAddr string `json:"peer_addr"`
}

// errIdentity is wrapped by the reason why felix.json cannot be read.
var errIdentity = errors.New("not the identity of a data directory")

// newerFormat is the format of a felix.json that a newer build has written.
type newerFormat int

func (n newerFormat) Error() string {
	return fmt.Sprintf("its format %d is newer than this build knows (%d): use the newer build", int(n), dataFormat)
}

// checksumField is the last field of felix.json, without which everything in it
// would be believed; files of older builds have none. It is the CRC-32C of what
// the file is without it.
const checksumField = "checksum"

var checksummed = regexp.MustCompile(`,"` + checksumField + `":"([0-9a-f]{8})"}\s*$`)

// checksum is that of felix.json without the field.
func checksum(raw []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
}

// damaged says whether felix.json is not what was written.
func damaged(raw []byte) bool {
	at := checksummed.FindSubmatchIndex(raw)
	return at != nil && checksum(append(slices.Clone(raw[:at[0]]), '}')) != string(raw[at[2]:at[3]])
}

// parseIdentity reads felix.json.
func parseIdentity(raw []byte) (identity, error) {
	if damaged(raw) {
		return identity{}, fmt.Errorf("%w: its checksum is wrong", errIdentity)
	}
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return identity{}, fmt.Errorf("%w: %w", errIdentity, err)
	}
	if head.Format > dataFormat {
		return identity{}, newerFormat(head.Format)
	}
	var id identity
	if err := json.Unmarshal(raw, &id); err != nil {
		return identity{}, fmt.Errorf("%w: %w", errIdentity, err)
	}
	if id.Format == 1 { // which has nothing else, and was always of one broker
		id = identity{Format: 1, StoreID: id.StoreID, NodeID: firstNode}
	} else if err := id.keepUnknown(raw); err != nil {
		return identity{}, fmt.Errorf("%w: %w", errIdentity, err)
	}
	if why := id.contradiction(); why != "" {
		return identity{}, fmt.Errorf("%w: %s", errIdentity, why)
	}
	return id, nil
}

// keepUnknown keeps the fields of felix.json that this build does not know.
func (id *identity) keepUnknown(raw []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[identity]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		// Names are matched as encoding/json does, or a field would come twice.
		maps.DeleteFunc(all, func(key string, _ json.RawMessage) bool { return strings.EqualFold(key, name) })
	}
	delete(all, checksumField)
	if len(all) > 0 {
		id.more = all
	}
	return nil
}

// encode is felix.json.
func (id identity) encode() ([]byte, error) {
	raw, err := json.Marshal(id)
	if err != nil {
		return nil, err
	}
	if len(id.more) > 0 {
		more, err := json.Marshal(id.more)
		if err != nil {
			return nil, err
		}
		raw = append(append(raw[:len(raw)-1], ','), more[1:]...)
	}
	return fmt.Appendf(raw[:len(raw)-1:len(raw)-1], `,"%s":"%s"}`, checksumField, checksum(raw)), nil
}

// contradiction says what cannot be in an identity, or nothing.
func (id *identity) contradiction() string {
	switch {
	case id.Format < 1:
		return "it has no format"
	case id.StoreID == "":
		return "it has no store id"
	case id.NodeID > maxNodeID:
		return "its node id is too high"
	case id.Format > 1 && (id.ClusterID == "") != (id.NodeID == 0):
		return "it has one of node id and cluster id"
	case id.Formed && id.ClusterID == "":
		return "it is of a cluster that has no id"
	case id.Bootstrapped && !id.Formed:
		return "its metadata was made before the cluster"
	}
	self := len(id.Founders) == 0
	seen := map[uint64]bool{}
	for _, f := range id.Founders {
		if f.ID == 0 || f.ID > maxNodeID || f.StoreID == "" || seen[f.ID] {
			return "one of the founders is none"
		}
		seen[f.ID] = true
		self = self || f.ID == id.NodeID && f.StoreID == id.StoreID
	}
	if !self {
		return "it is not one of its founders"
	}
	return ""
}

// randomID is a new random id, in hexadecimal.
func randomID() (string, error) {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return "", fmt.Errorf("no random id: %w", err)
	}
	return hex.EncodeToString(id), nil
}

type dataDir struct {
	fs     vfs.FS
	dir    string
	lock   io.Closer
	saving sync.Mutex               // serializes changes of felix.json
	saved  atomic.Pointer[identity] // as felix.json has it; what it points to is not changed
}

// id is the identity, as it is on disk. It can be asked for at any time; its
// slices are not to be changed.
func (d *dataDir) id() identity { return *d.saved.Load() }

func (d *dataDir) path(name string) string { return d.fs.PathJoin(d.dir, name) }

// openDataDir makes or opens the directory, locks it, and reads its identity.
// Every error is one line that names the directory and what to do.
func openDataDir(fs vfs.FS, dir string) (opened *dataDir, err error) {
	if dir == "" {
		return nil, errors.New("no data directory was given: counters need durable storage")
	}
	d := &dataDir{fs: fs, dir: dir}
	if err := makeDir(fs, dir); err != nil {
		return nil, dirErrorf(dir, "it cannot be made: %w", err)
	}
	if d.lock, err = fs.Lock(d.path("LOCK")); err != nil {
		return nil, dirErrorf(dir, "%s: %w", lockProblem(err), err)
	}
	defer func() {
		if err != nil {
			opened, err = nil, errors.Join(err, d.lock.Close()) // nobody else has to close it
		}
	}()
	raw, err := readFile(fs, d.path("felix.json"))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return d, d.create()
	case err != nil:
		return nil, dirErrorf(dir, "felix.json cannot be read: %w", err)
	}
	id, err := parseIdentity(raw)
	if errors.Is(err, errIdentity) {
		return nil, dirErrorf(dir, "felix.json is corrupt: restore the directory from a backup, or start on an empty one")
	} else if err != nil {
		return nil, inDir(dir, err)
	}
	d.saved.Store(&id)
	return d, d.complete()
}

// complete refuses a directory that has lost its log: the log is made before
// the state, and what was acknowledged last is only there.
func (d *dataDir) complete() error {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return inDir(d.dir, err)
	}
	if slices.Contains(names, "state") && !slices.Contains(names, "log") {
		return dirErrorf(d.dir, "the log is missing beside the state: the directory is damaged, restore it")
	}
	return nil
}

// lockProblem tells a lock that somebody holds from a file that cannot be made.
func lockProblem(err error) string {
	var path *os.PathError
	switch {
	case !errors.As(err, &path):
		return "it is in use by another process"
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EROFS):
		return "it is not writable"
	}
	return "it cannot be used"
}

// create writes the identity of a new directory. Anything else in it means
// that the identity was lost.
func (d *dataDir) create() error {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return inDir(d.dir, err)
	}
	for _, name := range names {
		if name == "log" || name == "state" {
			return dirErrorf(d.dir, "felix.json is missing beside %s: restore it, or start on an empty directory", name)
		}
	}
	id, err := randomID()
	if err != nil {
		return inDir(d.dir, err)
	}
	return d.save(identity{Format: dataFormat, StoreID: id})
}

// save replaces the identity, durably.
func (d *dataDir) save(id identity) error {
	return d.change(func(now *identity) error { *now = id; return nil })
}

// change changes the identity, durably: one change after the other, each from
// what the one before has left. An error of change leaves it as it is.
func (d *dataDir) change(change func(id *identity) error) error {
	d.saving.Lock()
	defer d.saving.Unlock()
	var id identity
	if old := d.saved.Load(); old != nil {
		id = *old
	}
	before := id
	if err := change(&id); err != nil || reflect.DeepEqual(id, before) {
		return err
	}
	raw, err := id.encode()
	if err != nil {
		return err
	}
	if err := writeFile(d.fs, d.dir, "felix.json", append(raw, '\n')); err != nil {
		return dirErrorf(d.dir, "it is not writable: %w", err)
	}
	d.saved.Store(&id)
	return nil
}

// isNode checks that the directory is the broker's that was asked for; 0 asks
// for none.
func (d *dataDir) isNode(id uint64) error {
	if id > maxNodeID {
		return fmt.Errorf("node id %d: it is 1 to %d", id, uint64(maxNodeID))
	}
	if mine := d.id().NodeID; id != 0 && mine != 0 && id != mine {
		return dirErrorf(d.dir, "it is that of node %d, not of node %d: give the directory of that node, or an empty one", mine, id)
	}
	return nil
}

// begin counts a start, before anything rests on it and before anybody is told
// of it. A directory of format 1 stays as it is: it is of a broker alone, and
// becomes format 2 when all of it is.
func (d *dataDir) begin(node uint64) error {
	if err := d.isNode(node); err != nil || d.id().Format < dataFormat {
		return err
	}
	if why := d.id().Distrusted; why != "" {
		return fmt.Errorf("data directory %s: %s", d.dir, why)
	}
	return d.change(func(id *identity) error { id.Starts++; return nil })
}

// alone is the identity of the only broker of a new cluster.
func (id identity) alone(node uint64) (identity, error) {
	cluster, err := randomID()
	id.ClusterID, id.NodeID, id.Formed = cluster, node, true
	id.Founders = []founder{{ID: id.NodeID, StoreID: id.StoreID}}
	return id, err
}

func (d *dataDir) close() error { return d.lock.Close() }

func readFile(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	return raw, errors.Join(err, f.Close())
}

// writeFile replaces a file so that after a crash it is the old or the new one.
func writeFile(fs vfs.FS, dir, name string, raw []byte) error {
	temporary := fs.PathJoin(dir, name+".new")
	f, err := fs.Create(temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := fs.Rename(temporary, fs.PathJoin(dir, name)); err != nil {
		return err
	}
	return syncDir(fs, dir)
}

// makeDir makes a directory and what is missing above it, so that a power cut
// does not take them away again, with all that is synced inside.
func makeDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return syncDir(fs, parent)
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

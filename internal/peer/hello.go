package peer

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

// The versions of the protocol that this build speaks. 2 has brought bounds and
// idempotency ids of operations, and groups of them (opcodec.go).
const (
	protocolMin = 1
	protocolMax = 2
)

// Reason is why somebody is refused, for programs.
type Reason string

// The reasons. A broker that most others refuse for its StoreID or Starts, or
// as Removed, will never be let in.
const (
	// ReasonProtocol is a build that speaks another protocol.
	ReasonProtocol Reason = "protocol"
	// ReasonFeature is a build without a feature that was finalized.
	ReasonFeature Reason = "feature"
	// ReasonCluster is a broker of another cluster.
	ReasonCluster Reason = "cluster"
	// ReasonAddress is an address that another broker uses now.
	ReasonAddress Reason = "address"
	// ReasonRemoved is a node that was removed.
	ReasonRemoved Reason = "removed"
	// ReasonStore is a node with another data directory.
	ReasonStore Reason = "store"
	// ReasonInstance is a second process that acts as the node.
	ReasonInstance Reason = "instance"
	// ReasonStarts is a data directory that has gone back in time.
	ReasonStarts Reason = "starts"
)

// Refusal is why a broker does not speak with another, in one sentence for
// whoever operates the one that is refused.
type Refusal struct {
	Reason  Reason
	Message string
}

// Error is the sentence.
func (r *Refusal) Error() string { return r.Message }

func refusal(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// Member is what the cluster knows of a node.
type Member struct {
	StoreID string
	Removed bool
	Last    Start // as recorded; without an instance, none was
}

// Passed says whether the node was started on another directory than that of id
// since that was last part of the cluster: that one is an old copy, however often
// it is started. Where the record is older than what the directory knows to be
// recorded, it is the record that is old.
func (m *Member) Passed(id Identity) bool {
	if m.Last.Instance == "" || m.Last.Instance == id.Instance || slices.Contains(id.Recorded, m.Last) {
		return false
	}
	return len(id.Recorded) == 0 || m.Last.Starts >= id.Recorded[0].Starts
}

// OldCopy is why a node stays outside whose directory was Passed.
func OldCopy(node uint64) *Refusal {
	return refusal(ReasonStarts, "node %d has gone on since its directory was copied: its directory is an old copy; run `felixctl node rm %d` and join under a new id", node, node)
}

// Roster is what a broker knows of its cluster, to check others by.
type Roster struct {
	Finalized []string // features that every build must have
	Members   map[uint64]Member
}

// errUnknownNode is no refusal: our roster may be old.
var errUnknownNode = errors.New("the node is not known here yet")

// Check is what Handler.Check has to do: whether self, knowing r, may speak with
// other, who believes to speak with node to that has the store toStore.
func (r *Roster) Check(self, other Identity, to uint64, toStore string) error {
	for _, feature := range r.Finalized {
		if !slices.Contains(other.Features, feature) {
			return refusal(ReasonFeature, "the cluster has finalized %s, which felix %s of node %d does not have: start it with a newer build",
				feature, other.Version, other.Node)
		}
	}
	if other.ClusterID != self.ClusterID {
		return refusal(ReasonCluster, "node %d is of cluster %q and node %d of cluster %q: check the addresses, each cluster has its own brokers",
			other.Node, other.ClusterID, self.Node, self.ClusterID)
	}
	if to != self.Node || toStore != self.StoreID {
		return refusal(ReasonAddress, "%s is the address of node %d with store %s, not of node %d with store %s",
			self.Addr, self.Node, self.StoreID, to, toStore)
	}
	m, known := r.Members[other.Node]
	switch {
	case !known:
		return fmt.Errorf("node %d: %w", other.Node, errUnknownNode)
	case m.Removed:
		return refusal(ReasonRemoved, "node %d was removed from this cluster; start it with an empty directory and a new --node-id", other.Node)
	case m.StoreID != other.StoreID:
		return refusal(ReasonStore, "node %d is known with another data directory: if it was lost or copied, run `felixctl node rm %d` and join under a new id",
			other.Node, other.Node)
	case m.Passed(other):
		return OldCopy(other.Node)
	}
	return nil
}

// checkProtocol comes before everything else: what follows could be misread.
func checkProtocol(h *peerv1.Hello) error {
	if h.GetProtocolMin() <= protocolMax && protocolMin <= h.GetProtocolMax() {
		return nil
	}
	return refusal(ReasonProtocol, "felix %s of node %d speaks the peer protocol %d to %d, the other side %d to %d: update one broker at a time, and one release at a time",
		h.GetVersion(), h.GetFrom(), h.GetProtocolMin(), h.GetProtocolMax(), protocolMin, protocolMax)
}

func helloOf(id Identity, to uint64, toStore string) *peerv1.Hello {
	var recorded []*peerv1.Start
	for _, s := range id.Recorded {
		recorded = append(recorded, &peerv1.Start{Starts: s.Starts, Instance: s.Instance})
	}
	return &peerv1.Hello{ProtocolMin: protocolMin, ProtocolMax: protocolMax, Version: id.Version, Features: id.Features,
		ClusterId: id.ClusterID, From: id.Node, StoreId: id.StoreID, Instance: id.Instance, Starts: id.Starts,
		To: to, ToStoreId: toStore, Formed: id.Formed, PeerAddr: id.Addr, Recorded: recorded}
}

func identityOf(h *peerv1.Hello) Identity {
	var recorded []Start
	for _, s := range h.GetRecorded() {
		recorded = append(recorded, Start{Starts: s.GetStarts(), Instance: s.GetInstance()})
	}
	return Identity{ClusterID: h.GetClusterId(), Node: h.GetFrom(), StoreID: h.GetStoreId(), Instance: h.GetInstance(),
		Starts: h.GetStarts(), Addr: h.GetPeerAddr(), Version: h.GetVersion(), Features: h.GetFeatures(), Formed: h.GetFormed(), Recorded: recorded,
		protocol: min(protocolMax, h.GetProtocolMax())}
}

// frame is one of the frames of a stream.
type frame interface {
	GetHello() *peerv1.Hello
	GetWelcome() *peerv1.Hello
}

// check looks at a Hello or a Welcome.
func (n *Network) check(h *peerv1.Hello) (Identity, error) {
	if h == nil {
		return Identity{}, connect.NewError(connect.CodeInvalidArgument, errors.New("a stream begins with a hello"))
	}
	if err := checkProtocol(h); err != nil {
		return Identity{}, err
	}
	id := identityOf(h)
	err := n.o.Handler.Check(id, h.GetTo(), h.GetToStoreId())
	var r *Refusal
	if err == nil || errors.As(err, &r) && r.Reason == ReasonStarts {
		// A copied directory may have been passed as well: this says more.
		if other := n.otherInstance(id); other != nil {
			err = other
		}
	}
	return id, err
}

// again checks somebody whose stream is there already.
func (n *Network) again(id Identity) error {
	self := n.o.Handler.Self()
	var r *Refusal
	if errors.As(n.o.Handler.Check(id, self.Node, self.StoreID), &r) {
		return r
	}
	return nil // what may pass is no reason
}

// greet is the dialling side's half of a handshake. refused says that it was the
// other side that refused.
func (n *Network) greet(p Peer, send func(*peerv1.Hello) error, receive func() (frame, error)) (id Identity, refused bool, err error) {
	if err := send(helloOf(n.o.Handler.Self(), p.Node, p.StoreID)); err != nil && !isEOF(err) {
		return Identity{}, false, err // after io.EOF receive knows why
	}
	f, err := receive()
	if err != nil {
		err = localError(err)
		var r *Refusal
		return Identity{}, errors.As(err, &r), err
	}
	w := f.GetWelcome()
	id, err = n.check(w)
	if err == nil && (id.Node != p.Node || id.StoreID != p.StoreID) {
		err = refusal(ReasonAddress, "%s is the address of node %d with store %s, not of node %d with store %s",
			p.Addr, id.Node, id.StoreID, p.Node, p.StoreID)
	}
	return id, false, err
}

// welcome is the listening side's half. It registers the stream; after a nil
// error the caller has to call left.
func (n *Network) welcome(in *inbound, receive func() (frame, error), send func(*peerv1.Hello) error) error {
	f, err := receive()
	if err != nil {
		return err
	}
	if in.id, err = n.check(f.GetHello()); err == nil {
		err = n.enter(in)
	}
	if err != nil {
		n.log.Debug("a peer is refused", "node", in.id.Node, "addr", in.id.Addr, "why", err)
		return wireError(err)
	}
	// What is known may have changed before Recheck could see this stream.
	if err = n.again(in.id); err == nil {
		err = send(helloOf(n.o.Handler.Self(), in.id.Node, in.id.StoreID))
	}
	if err != nil {
		n.left(in)
		return wireError(err)
	}
	n.moved(in.id)
	return nil
}

// Errors travel with what they are in a header, which gRPC sends as a trailer.
const (
	refusalHeader = "Felix-Refusal"
	codeHeader    = "Felix-Error-Code"
)

// wireError is how err goes to a peer.
func wireError(err error) error {
	var r *Refusal
	var e *felix.Error
	var c *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &r):
		c = connect.NewError(connect.CodeFailedPrecondition, err)
		c.Meta().Set(refusalHeader, string(r.Reason))
	case errors.As(err, &e):
		c = connect.NewError(connect.Code(e.Code.Info().Connect), errors.New(e.Message))
		c.Meta().Set(codeHeader, e.Code.String())
	case errors.As(err, &c):
	default:
		c = connect.NewError(connect.CodeUnavailable, err)
	}
	return c
}

// localError is what a peer's error, or the failure to hear from it, is here: a
// *Refusal, a *felix.Error of the peer, or that it is unavailable.
func localError(err error) error {
	var c *connect.Error
	if !errors.As(err, &c) {
		return felix.Errorf(felix.Unavailable, "the peer cannot be reached: %v", err)
	}
	if reason := meta(c, refusalHeader); reason != "" {
		return &Refusal{Reason: Reason(reason), Message: c.Message()}
	}
	if code, ok := felix.ParseCode(meta(c, codeHeader)); ok {
		return felix.Errorf(code, "%s", c.Message())
	}
	return felix.Errorf(felix.Unavailable, "the peer cannot be reached: %s", c.Message())
}

func meta(c *connect.Error, name string) string {
	return http.Header(c.Meta()).Get(name)
}

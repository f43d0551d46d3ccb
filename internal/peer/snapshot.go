package peer

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"time"

	"connectrpc.com/connect"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/peer/peerv1"
)

// SnapshotChunkBytes is how large the chunks of a snapshot should be.
const SnapshotChunkBytes = 256 << 10

// progressEvery is after how many chunks a receiver says how far it is.
const progressEvery = 16

func crcOf(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

func closeUnless(conn net.Conn, d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { _ = conn.Close() }) // whoever reads from it hears of it
}

var errSnapshotsBusy = &felix.Error{Code: felix.ResourceExhausted,
	Message:    fmt.Sprintf("%d snapshots are on their way already", felix.MaxSnapshotStreams),
	RetryAfter: time.Second}

// SendSnapshot sends a snapshot to a node, on a connection of its own. next fills
// buf, which has SnapshotChunkBytes, or answers a chunk of its own, and io.EOF
// after the last one. The error is nil once the receiver has taken the snapshot;
// resource_exhausted says that as many as may be are on their way, here or there.
func (n *Network) SendSnapshot(ctx context.Context, node uint64, h SnapshotHeader, next func(buf []byte) (chunk []byte, err error)) error {
	l := n.link(node)
	if l == nil {
		return felix.Errorf(felix.Unavailable, "node %d is no peer", node)
	}
	select {
	case n.sending <- struct{}{}:
		defer func() { <-n.sending }()
	default:
		return errSnapshotsBusy
	}
	message, err := proto.Marshal(h.Message)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	p := l.target()
	line := n.line(ctx, p.Node, p.Addr)
	defer line.close(errLineClosed)
	s := &outgoing{line: line, stream: line.client.Snapshot(line.ctx), next: next}
	_, err = l.greet(snapshotStream, line, p,
		func(h *peerv1.Hello) error {
			return s.stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Hello{Hello: h}})
		},
		func() (frame, error) { return s.stream.Receive() })
	if err != nil {
		return err
	}
	return s.run(&peerv1.SnapshotStart{Shard: h.Shard, Message: message, Applied: h.Applied, EstimatedBytes: h.EstimatedBytes})
}

// outgoing is a snapshot on its way out.
type outgoing struct {
	line   *line
	stream *connect.BidiStreamForClient[peerv1.SnapshotFrame, peerv1.SnapshotFrame]
	next   func(buf []byte) ([]byte, error)
	stall  *time.Timer
}

// run sends, and listens meanwhile: the receiver may refuse at any time.
func (s *outgoing) run(start *peerv1.SnapshotStart) error {
	s.stall = time.AfterFunc(snapshotStall, func() { s.line.close(errStalled) })
	defer s.stall.Stop()
	var sender sync.WaitGroup
	var sendErr error
	sender.Go(func() {
		if sendErr = s.send(start); sendErr != nil && !isEOF(sendErr) {
			s.line.close(sendErr)
		}
	})
	verdict, err := s.receive()
	if err != nil {
		err = s.line.why(localError(err))
	} else if verdict != "" {
		err = felix.Errorf(felix.Unavailable, "the receiver refused the snapshot: %s", verdict)
	}
	s.line.close(errLineClosed)
	sender.Wait() // next is not called any more
	return err
}

func (s *outgoing) send(start *peerv1.SnapshotStart) error {
	if err := s.stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Start{Start: start}}); err != nil {
		return err
	}
	buf := make([]byte, SnapshotChunkBytes)
	for chunks := uint64(0); ; chunks++ {
		chunk, err := s.next(buf)
		if errors.Is(err, io.EOF) {
			return s.stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_End{End: &peerv1.SnapshotEnd{Chunks: chunks}}})
		}
		if err != nil {
			return fmt.Errorf("reading the snapshot: %w", err)
		}
		err = s.stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Chunk{
			Chunk: &peerv1.SnapshotChunk{Data: chunk, Crc32C: crcOf(chunk)}}})
		if err != nil {
			return err
		}
		s.stall.Reset(snapshotStall)
	}
}

// receive waits for the verdict.
func (s *outgoing) receive() (verdict string, err error) {
	for {
		f, err := s.stream.Receive()
		if err != nil {
			return "", err
		}
		if done := f.GetDone(); done != nil {
			return done.GetError(), nil
		}
		s.stall.Reset(snapshotStall)
	}
}

// Snapshot implements the stream of one snapshot.
func (s *service) Snapshot(ctx context.Context, stream *connect.BidiStream[peerv1.SnapshotFrame, peerv1.SnapshotFrame]) error {
	return outside(func() error {
		in := &inbound{kind: snapshotStream}
		err := s.accept(ctx, in, func() (frame, error) { return stream.Receive() }, func(h *peerv1.Hello) error {
			return stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Welcome{Welcome: h}})
		})
		if err != nil {
			return err
		}
		defer s.n.left(in)
		select {
		case s.n.taking <- struct{}{}:
			defer func() { <-s.n.taking }()
		default:
			return wireError(errSnapshotsBusy)
		}
		stall := closeUnless(in.conn, snapshotStall)
		defer stall.Stop()
		return s.takeSnapshot(in, stream, stall)
	})
}

// takeSnapshot gives a snapshot to the Handler and its verdict to the sender.
func (s *service) takeSnapshot(in *inbound, stream *connect.BidiStream[peerv1.SnapshotFrame, peerv1.SnapshotFrame], stall *time.Timer) error {
	f, err := stream.Receive()
	if err != nil {
		return err
	}
	start := f.GetStart()
	h := SnapshotHeader{Shard: start.GetShard(), Message: &raftpb.Message{}, Applied: start.GetApplied(), EstimatedBytes: start.GetEstimatedBytes()}
	if err := proto.Unmarshal(start.GetMessage(), h.Message); err != nil || start == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("a snapshot begins with its start"))
	}
	chunks := &chunkReader{receive: stream.Receive, stall: stall, progress: func(n uint64) error {
		return stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Progress{Progress: &peerv1.SnapshotProgress{Chunks: n}}})
	}}
	done := &peerv1.SnapshotDone{}
	if err := s.n.o.Handler.Snapshot(in.id.Node, h, chunks.next); err != nil {
		done.Error = err.Error()
		if done.Error == "" {
			done.Error = "no reason was given"
		}
	}
	return stream.Send(&peerv1.SnapshotFrame{Kind: &peerv1.SnapshotFrame_Done{Done: done}})
}

// chunkReader reads the chunks of a snapshot and checks that they are whole.
type chunkReader struct {
	receive  func() (*peerv1.SnapshotFrame, error)
	progress func(chunks uint64) error
	stall    *time.Timer
	chunks   uint64
	err      error // once set, the answer for good
}

func (r *chunkReader) next() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	var chunk []byte
	chunk, r.err = r.read()
	return chunk, r.err
}

func (r *chunkReader) read() ([]byte, error) {
	f, err := r.receive()
	if err != nil {
		return nil, fmt.Errorf("the snapshot broke off after %d chunks: %w", r.chunks, noEOF(err))
	}
	r.stall.Reset(snapshotStall)
	switch k := f.GetKind().(type) {
	case *peerv1.SnapshotFrame_End:
		if k.End.GetChunks() != r.chunks {
			return nil, fmt.Errorf("the snapshot has %d chunks, %d have come", k.End.GetChunks(), r.chunks)
		}
		return nil, io.EOF
	case *peerv1.SnapshotFrame_Chunk:
		if crcOf(k.Chunk.GetData()) != k.Chunk.GetCrc32C() {
			return nil, fmt.Errorf("chunk %d of the snapshot is damaged", r.chunks)
		}
		r.chunks++
		if r.chunks%progressEvery == 0 {
			if err := r.progress(r.chunks); err != nil {
				return nil, err
			}
		}
		return k.Chunk.GetData(), nil
	default:
		return nil, errors.New("a snapshot consists of chunks")
	}
}

// noEOF keeps a stream that broke off from looking like the snapshot's end.
func noEOF(err error) error {
	if isEOF(err) {
		return io.ErrUnexpectedEOF
	}
	return err
}

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/felix-go/felix/internal/peer"
)

// Fleet is the brokers of `felix dev --nodes`: a cluster in one process.
type Fleet struct {
	log     *slog.Logger
	members []*member
	failed  chan error
	stopped chan struct{} // closed when Stop begins
	retired sync.WaitGroup
}

// member is one of them.
type member struct {
	config    Config
	listeners listeners
	log       *slog.Logger
	daemon    *Daemon
	err       error         // why it did not start
	leave     chan struct{} // closed when the cluster has removed it
	once      sync.Once
	retired   bool // the daemon was stopped because of that
}

const (
	// maxFleet is more than anybody plays with on one machine.
	maxFleet = 9
	// portStep is between the ports of two of its brokers.
	portStep = 10
)

// StartFleet starts c.Nodes brokers, each on a directory of its own in c.DataDir.
// They form a cluster the first time; those that are new later join it. fatal is
// as for Start.
func StartFleet(ctx context.Context, c Config, log *slog.Logger, fatal func(error)) (_ *Fleet, err error) {
	f := &Fleet{log: log, failed: make(chan error, 1), stopped: make(chan struct{})}
	if _, err := os.Stat(identityOf(c.DataDir)); err == nil {
		return nil, fmt.Errorf("data directory %s: it is that of one broker, not of several: leave out --nodes, or give another --data-dir", c.DataDir)
	}
	defer func() {
		if err != nil {
			for _, m := range f.members {
				err = errors.Join(err, m.listeners.close())
			}
		}
	}()
	for i := range c.Nodes {
		m := &member{config: c.member(i), log: log.With("node", i+1), leave: make(chan struct{})}
		if m.listeners, err = listen(m.config); err != nil {
			return nil, err
		}
		f.members = append(f.members, m)
	}
	f.introduce()
	if err = f.start(ctx, fatal); err != nil {
		return nil, err
	}
	for _, m := range f.members {
		f.watch(m)
	}
	return f, nil
}

// identityOf is the file by which a directory is known as a broker's.
func identityOf(dir string) string { return filepath.Join(dir, "felix.json") }

// membership is the cluster that the data directory belongs to, if any, and whether
// that is formed. A directory that cannot be read is complained of when it is
// opened.
func (c *Config) membership() (cluster string, formed bool) {
	var id struct {
		ClusterID string `json:"cluster_id"`
		Formed    bool   `json:"formed"`
	}
	if raw, err := os.ReadFile(identityOf(c.DataDir)); err != nil || json.Unmarshal(raw, &id) != nil {
		return "", false
	}
	return id.ClusterID, id.Formed
}

// member is the settings of the broker number i, from 0.
func (c *Config) member(i int) Config {
	m := *c
	m.DataDir = filepath.Join(c.DataDir, fmt.Sprintf("node-%d", i+1))
	m.NodeID = uint64(i + 1)
	for _, addr := range []*string{&m.RESPAddr, &m.HTTPAddr, &m.PeerAddr} {
		host, port, _ := net.SplitHostPort(*addr) // checked before
		if n, err := strconv.Atoi(port); err == nil && n != 0 {
			*addr = net.JoinHostPort(host, strconv.Itoa(n+portStep*i))
		}
	}
	return m
}

// introduce tells the brokers of each other: all of them, where none belongs to a
// cluster yet; otherwise those that do not join the others. Wherever the
// metadata says that a broker is, it is at its listener.
func (f *Fleet) introduce() {
	at := map[uint64]string{}
	var old []string
	for _, m := range f.members {
		at[m.config.NodeID] = m.listeners.peer.Addr().String()
		if _, formed := m.config.membership(); formed {
			old = append(old, at[m.config.NodeID])
		}
	}
	for _, m := range f.members {
		m.config.dial = func(ctx context.Context, node uint64, addr string) (net.Conn, error) {
			if here := at[node]; here != "" {
				addr = here
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
		if cluster, _ := m.config.membership(); cluster == "" && len(old) > 0 {
			m.config.Join = old
			continue
		}
		m.config.Peers = at
	}
}

// start starts all of them, side by side since they wait for each other. One that
// was removed from the cluster stays out.
func (f *Fleet) start(ctx context.Context, fatal func(error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		starting sync.WaitGroup
		first    sync.Once
		culprit  *member // the first that could not start, which is why others could not
	)
	for _, m := range f.members {
		starting.Go(func() {
			ctx, giveUp := context.WithCancel(ctx)
			defer giveUp()
			go func() {
				select {
				case <-m.leave:
					giveUp()
				case <-ctx.Done():
				}
			}()
			m.daemon, m.err = startOn(ctx, m.config, m.listeners, m.log, func(err error) {
				if !wasRemoved(err) {
					fatal(fmt.Errorf("node %d: %w", m.config.NodeID, err))
					return
				}
				m.once.Do(func() {
					m.log.Warn("this broker was removed from the cluster, and stops; the others go on", "why", err)
					close(m.leave)
				})
			})
			if m.err != nil && !m.left() {
				first.Do(func() { culprit = m })
				cancel() // the others may wait for it
			}
		})
	}
	starting.Wait()
	if culprit == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), f.members[0].config.StopTimeout)
	defer stop()
	return errors.Join(fmt.Errorf("node %d: %w", culprit.config.NodeID, culprit.err), f.Stop(ctx))
}

// left says whether the cluster has removed the broker.
func (m *member) left() bool {
	select {
	case <-m.leave:
		return true
	default:
		return false
	}
}

func wasRemoved(err error) bool {
	var r *peer.Refusal
	return errors.As(err, &r) && r.Reason == peer.ReasonRemoved
}

// watch passes on a failure of a broker, and stops one that was removed.
func (f *Fleet) watch(m *member) {
	if m.daemon == nil {
		return
	}
	f.retired.Go(func() {
		select {
		case err := <-m.daemon.Failed():
			select {
			case f.failed <- fmt.Errorf("node %d: %w", m.config.NodeID, err):
			default:
			}
		case <-m.leave:
			ctx, cancel := context.WithTimeout(context.Background(), m.config.StopTimeout)
			defer cancel()
			if err := m.daemon.Stop(ctx); err != nil {
				m.log.Warn("the stop was not clean", "error", err)
			}
			m.retired = true
		case <-f.stopped:
		}
	})
}

// Daemons are the brokers, by node id, from 1; nil is one that had been removed.
func (f *Fleet) Daemons() []*Daemon {
	all := make([]*Daemon, len(f.members))
	for i, m := range f.members {
		all[i] = m.daemon
	}
	return all
}

// Failed tells why a door stopped by itself.
func (f *Fleet) Failed() <-chan error { return f.failed }

// Stop closes the doors of all brokers, and when all are answered the brokers.
// Nothing is handed over, since nobody stays.
func (f *Fleet) Stop(ctx context.Context) error {
	close(f.stopped)
	f.retired.Wait()
	began := time.Now()
	all := func(what func(*Daemon) error) error {
		errs := make([]error, len(f.members))
		var running sync.WaitGroup
		for i, m := range f.members {
			if m.daemon != nil && !m.retired {
				running.Go(func() { errs[i] = what(m.daemon) })
			}
		}
		running.Wait()
		return errors.Join(errs...)
	}
	f.log.Info("the brokers are stopping")
	err := errors.Join(all(func(d *Daemon) error { return d.closeDoors(ctx) }), all(func(d *Daemon) error { return d.closeBroker(ctx) }))
	f.log.Info("the brokers have stopped", "took", time.Since(began).Round(time.Millisecond))
	return err
}

// Package daemon puts a broker together and takes it apart: the only place
// that constructs and closes things, in order. Storage first, doors last; at a
// stop the doors first, after they have answered what they have read.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/broker"
	"github.com/felix-go/felix/internal/httpapi"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/redisapi"
)

// Daemon is a running broker with its doors.
type Daemon struct {
	config    Config
	log       *slog.Logger
	broker    *broker.Broker
	listeners listeners
	resp      *netloop.Server
	http      *http.Server

	stopping atomic.Bool
	serving  sync.WaitGroup
	failed   chan error // the first reason why the process must end
}

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
}

// Version is what the build knows of its version.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Start opens the data directory and serves. fatal is told, once, when the
// disk failed or data is damaged: the process must end without going on.
func Start(ctx context.Context, c Config, log *slog.Logger, fatal func(error)) (*Daemon, error) {
	if _, err := os.Stat(identityOf(c.member(0).DataDir)); err == nil && c.Dev {
		return nil, fmt.Errorf("data directory %s: it is that of several brokers: give --nodes, or another --data-dir", c.DataDir)
	}
	// Listen first: a port that is taken is the commonest mistake, and replay
	// may take a while.
	l, err := listen(c)
	if err != nil {
		return nil, err
	}
	return startOn(ctx, c, l, log, fatal)
}

// startOn is Start on listeners, which are closed if it fails.
func startOn(ctx context.Context, c Config, l listeners, log *slog.Logger, fatal func(error)) (_ *Daemon, err error) {
	d := &Daemon{config: c, listeners: l, log: log, failed: make(chan error, 1)}
	began := time.Now()
	defer func() {
		if err != nil {
			err = errors.Join(err, d.listeners.close())
		}
	}()
	metrics := newMetrics()
	d.broker, err = broker.Open(ctx, broker.Options{Dir: c.DataDir, Logger: log, Fatal: fatal, RequestTimeout: c.RequestTimeout,
		RecordBytes: c.RecordMemory << 20, BlockCacheBytes: c.BlockCache << 20, InflightBytes: c.InflightMemory << 20,
		CheckpointEvery: c.Checkpoint, ReplicationIsTarget: c.Dev, OnSync: metrics.observeSync, OnCheckpointStep: metrics.observeCheckpointStep,
		NodeID: c.NodeID, Cluster: d.clusterOptions()})
	if err != nil {
		return nil, advised(err)
	}
	if c.Dev {
		if err := d.makeDevCaches(ctx); err != nil {
			return nil, errors.Join(err, d.broker.Close(ctx))
		}
	}
	if err := d.openDoors(metrics); err != nil {
		return nil, errors.Join(err, d.broker.Close(ctx))
	}
	log.Info("broker is up", "data_dir", c.DataDir, "store_id", d.broker.StoreID(), "resp_addr", d.RESPAddr(),
		"http_addr", d.HTTPAddr(), "peer_addr", d.PeerAddr(), "took", time.Since(began).Round(time.Millisecond), "version", Version())
	return d, nil
}

// clusterOptions are the settings of a broker among others.
func (d *Daemon) clusterOptions() broker.ClusterOptions {
	c := &d.config
	o := broker.ClusterOptions{Listener: d.listeners.peer, Version: Version(), Peers: c.Peers, Join: c.Join, Reads: c.Reads,
		ReplaceAfter: c.ReplaceAfter, MaxClockOffset: c.MaxClockOffset, Dial: c.dial, Advertise: broker.Addresses{
			Peer: withPort(c.peerAddress(), d.listeners.peer), HTTP: withPort(cmp.Or(c.AdvertiseHTTP, c.HTTPAddr), d.listeners.http),
			RESP: withPort(cmp.Or(c.AdvertiseRESP, c.RESPAddr), d.listeners.resp)}}
	if c.PeerCert != "" {
		o.TLS = &peer.TLS{CertFile: c.PeerCert, KeyFile: c.PeerKey, CAFile: c.PeerCA}
	}
	return o
}

// withPort is what others are told of a listener: the setting, as it was given
// since certificates name hosts, with the port that was found if it had none.
// It is nothing if that is on every address, and nobody has said which is meant.
func withPort(setting string, l net.Listener) string {
	host, port, err := net.SplitHostPort(setting)
	if err != nil || isUnspecified(host) {
		return ""
	}
	if addr, ok := l.Addr().(*net.TCPAddr); ok && port == "0" {
		port = strconv.Itoa(addr.Port)
	}
	return net.JoinHostPort(host, port)
}

// makeDevCaches makes the caches that a newcomer finds.
func (d *Daemon) makeDevCaches(ctx context.Context) error {
	for _, name := range []string{felix.DefaultCache, felix.StatsCache} {
		scope := felix.Scope{Tenant: felix.DefaultTenant, Namespace: felix.DefaultNamespace, Cache: name}
		if _, err := d.broker.Cache(ctx, scope); err == nil {
			continue
		}
		_, _, _, err := d.broker.CreateCache(ctx, scope, felix.CacheSettings{})
		var e *felix.Error
		switch {
		case err == nil:
		case errors.As(err, &e) && e.Code == felix.AlreadyExists: // another broker was faster
		case errors.As(err, &e) && (e.Code == felix.Unavailable || e.Code == felix.OutcomeUnknown):
			// A cluster without a majority serves nothing, but its brokers have to
			// be up for it to get one.
			d.log.Warn("a cache that felix dev has was not made", "cache", scope.String(), "error", err)
		default:
			return fmt.Errorf("making cache %s: %w", scope, err)
		}
	}
	return nil
}

func (d *Daemon) openDoors(m *metrics) error {
	port := 0
	if tcp, ok := d.listeners.resp.Addr().(*net.TCPAddr); ok {
		port = tcp.Port
	}
	redis := redisapi.New(d.broker, redisapi.Options{Logger: d.log, Version: Version(), ServerPort: port, MaxConnections: d.config.MaxConnections})
	var err error
	d.resp, err = netloop.New(d.listeners.resp, netloop.Options{Handler: redis, Pacer: d.broker.Pacer(), Logger: d.log,
		MaxConnections: d.config.MaxConnections, IdleTimeout: d.config.IdleTimeout, MaxRequestBytes: redisapi.MaxRequestBytes,
		MemoryBytes: int(d.config.ConnMemory << 20)})
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.register(registry, d.broker, d.resp, redis)
	d.http = httpapi.NewServer(httpapi.Handler(d.broker, httpapi.Options{Cluster: d.broker, Log: d.log, Ready: d.ready, Metrics: registry, Register: registry,
		RequestTimeout: d.config.RequestTimeout}), d.log)
	d.serve("RESP", d.resp.Serve)
	d.serve("HTTP", func() error { return d.http.Serve(httpapi.LimitConnections(d.listeners.http, d.config.MaxConnections)) })
	return nil
}

// serve runs a door on a goroutine; one that ends by itself ends the broker.
func (d *Daemon) serve(door string, run func() error) {
	d.serving.Add(1)
	go func() {
		defer d.serving.Done()
		err := run()
		if err == nil || errors.Is(err, http.ErrServerClosed) || d.stopping.Load() {
			return
		}
		select {
		case d.failed <- fmt.Errorf("the %s door stopped: %w", door, err):
		default:
		}
	}()
}

func (d *Daemon) ready(context.Context) error {
	if d.stopping.Load() {
		return errors.New("the broker is stopping")
	}
	return d.broker.Ready()
}

// RESPAddr is where Redis clients connect.
func (d *Daemon) RESPAddr() string { return d.resp.Addr().String() }

// HTTPAddr is where felixctl and HTTP clients connect.
func (d *Daemon) HTTPAddr() string { return d.listeners.http.Addr().String() }

// PeerAddr is where other brokers connect.
func (d *Daemon) PeerAddr() string { return d.listeners.peer.Addr().String() }

// Failed tells why a door stopped by itself.
func (d *Daemon) Failed() <-chan error { return d.failed }

// Stop hands what the broker owns over to others, where there are others; answers
// what the doors have read, closes them, writes a last checkpoint and closes the
// data directory. When ctx ends, what is left is cut short; no
// acknowledged write is lost by that.
func (d *Daemon) Stop(ctx context.Context) error {
	began := time.Now()
	d.stopping.Store(true)
	d.log.Info("broker is stopping")
	d.broker.HandOver(ctx)
	err := errors.Join(d.closeDoors(ctx), d.closeBroker(ctx))
	d.log.Info("broker has stopped", "took", time.Since(began).Round(time.Millisecond))
	return err
}

// closeDoors answers what the doors have read, and closes them.
func (d *Daemon) closeDoors(ctx context.Context) error {
	d.stopping.Store(true)
	var errs []error
	if err := d.resp.Shutdown(ctx); err != nil {
		errs = append(errs, fmt.Errorf("closing the RESP door: %w", err))
	}
	if err := d.http.Shutdown(ctx); err != nil {
		errs = append(errs, fmt.Errorf("closing the HTTP door: %w", err), d.http.Close())
	}
	d.serving.Wait()
	return errors.Join(errs...)
}

// closeBroker comes after closeDoors.
func (d *Daemon) closeBroker(ctx context.Context) error {
	err := d.broker.Close(ctx)
	if err != nil {
		err = fmt.Errorf("closing the broker: %w", err)
	}
	return errors.Join(err, d.listeners.close()) // what nobody has taken over
}

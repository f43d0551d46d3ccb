package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/client"
	"github.com/felix-go/felix/internal/httpapi"
	"github.com/felix-go/felix/internal/model"
)

// sick is a Cluster in which nothing has its zero value.
type sick struct{ felix.Cluster }

var (
	sickNode = felix.NodeInfo{ID: 4, State: felix.NodeDraining, Up: true, Here: true, StoreID: "s", Version: "v", Features: []string{"f"},
		PeerAddr: "p:1", HTTPAddr: "h:1", RESPAddr: "r:1", ClockOffset: -3 * time.Second, Ineligible: "clock", Waiting: "shard", Replicas: 5, Owned: 6}
	sickShard = felix.ShardInfo{Scope: felix.Scope{Tenant: "t", Namespace: "n", Cache: "c"}, Meta: true, Number: 2, ID: 3, Owner: 4, Preferred: 5,
		Term: 6, Commit: 7, Replicas: []felix.ReplicaInfo{{Node: 8, RaftID: 9, Want: felix.ReplicaVoter, Have: felix.ReplicaLearner, Match: 10, Lag: 11,
			Active: true, Snapshot: &felix.SnapshotInfo{SentBytes: 0, EstimateBytes: 12}}, {Node: 9, RaftID: 10, Want: felix.ReplicaGone}}}
	sickFeature = felix.FeatureInfo{Name: "f", Summary: "s", Finalized: true, FinalizedAtMillis: 13, Lacking: []uint64{14}}
	sickMap     = felix.TopologyInfo{Scope: sickShard.Scope, Shards: []felix.ShardOwner{{Number: 1, FirstSlot: 2, LastSlot: 3, Owner: 4,
		HTTPAddr: "h", RESPAddr: "r", Nodes: []uint64{4, 5}}}}
)

func (sick) Nodes(context.Context) ([]felix.NodeInfo, error) { return []felix.NodeInfo{sickNode}, nil }
func (sick) Shards(context.Context, *felix.Scope) ([]felix.ShardInfo, error) {
	return []felix.ShardInfo{sickShard}, nil
}
func (sick) Topology(context.Context, felix.Scope) (felix.TopologyInfo, error) { return sickMap, nil }
func (sick) Features(context.Context) ([]felix.FeatureInfo, error) {
	return []felix.FeatureInfo{sickFeature}, nil
}

func startCluster(t *testing.T, service felix.Service, cluster felix.Cluster) *client.Client {
	t.Helper()
	door := httpapi.Handler(service, httpapi.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Cluster: cluster})
	c, err := client.New(client.Options{Brokers: []string{serve(t, door)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Every field arrives as the broker has it.
func TestClusterFields(t *testing.T) {
	c, ctx := startCluster(t, model.New(func() int64 { return 1 }), sick{}), t.Context()
	check := func(got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	nodes, err := c.Nodes(ctx)
	check(nodes, err, []felix.NodeInfo{sickNode})
	shards, err := c.Shards(ctx)
	check(shards, err, []felix.ShardInfo{sickShard})
	shards, err = c.CacheShards(ctx, "t", "n", "c")
	check(shards, err, []felix.ShardInfo{sickShard})
	topology, err := c.Topology(ctx, "t", "n", "c")
	check(topology, err, sickMap)
	features, err := c.Features(ctx)
	check(features, err, []felix.FeatureInfo{sickFeature})
}

func TestClusterChanges(t *testing.T) {
	service := model.New(func() int64 { return 1 })
	c, ctx := startCluster(t, service, model.NewCluster(service, 3)), t.Context()
	if _, _, _, err := c.CacheCreate(ctx, "", "", "c", felix.CacheSettings{Shards: 1}); err != nil {
		t.Fatal(err)
	}
	if s, err := c.ShardMove(ctx, "", "", "c", 0, 1, 3); err != nil || s.Owner != 3 {
		t.Errorf("moved: %+v, %v", s, err)
	}
	if s, err := c.ShardPrefer(ctx, "", "", "c", 0, 2); err != nil || s.Preferred != 2 {
		t.Errorf("preferred: %+v, %v", s, err)
	}
	if n, err := c.NodeDrain(ctx, 3, true); err != nil || n.State != felix.NodeDraining || n.Replicas != 0 {
		t.Errorf("drained: %+v, %v", n, err)
	}
	if n, err := c.NodeDrain(ctx, 3, false); err != nil || n.State != felix.NodeActive {
		t.Errorf("not drained: %+v, %v", n, err)
	}
	if n, err := c.NodeRemove(ctx, 3); err != nil || n.State != felix.NodeRemoved {
		t.Errorf("removed: %+v, %v", n, err)
	}
	if f, err := c.FeatureFinalize(ctx, "lease_free_reads"); err != nil || !f.Finalized {
		t.Errorf("finalized: %+v, %v", f, err)
	}
	for code, call := range map[felix.Code]func() error{
		felix.NodeNotFound:    func() error { _, err := c.NodeDrain(ctx, 9, true); return err },
		felix.ShardNotFound:   func() error { _, err := c.ShardMove(ctx, "", "", "c", 1<<40, 1, 2); return err },
		felix.FeatureNotFound: func() error { _, err := c.FeatureFinalize(ctx, "x"); return err },
		felix.InvalidArgument: func() error { _, err := c.CacheShards(ctx, "", "", ""); return err },
	} {
		var e *felix.Error
		if err := call(); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%v, want %v", err, code)
		}
	}
}

// A change of the cluster is sent once, whatever becomes of it.
func TestClusterChangesAreSentOnce(t *testing.T) {
	for name, change := range map[string]func(*client.Client) error{
		"drain":    func(c *client.Client) error { _, err := c.NodeDrain(t.Context(), 1, true); return err },
		"remove":   func(c *client.Client) error { _, err := c.NodeRemove(t.Context(), 1); return err },
		"move":     func(c *client.Client) error { _, err := c.ShardMove(t.Context(), "", "", "c", 0, 1, 2); return err },
		"prefer":   func(c *client.Client) error { _, err := c.ShardPrefer(t.Context(), "", "", "c", 0, 1); return err },
		"finalize": func(c *client.Client) error { _, err := c.FeatureFinalize(t.Context(), "f"); return err },
	} {
		t.Run(name, func(t *testing.T) {
			b := startBroken(t, answer(""))
			c, err := client.New(client.Options{Brokers: []string{b.address}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var e *felix.Error
			if err := change(c); !errors.As(err, &e) || e.Code != felix.OutcomeUnknown || b.requests.Load() != 1 {
				t.Errorf("%v after %d requests, want outcome_unknown after one", err, b.requests.Load())
			}
		})
	}
}

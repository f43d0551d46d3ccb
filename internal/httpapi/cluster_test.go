package httpapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/felix-go/felix"
	"github.com/felix-go/felix/internal/model"
)

const cluster = "/felix.v1.ClusterService/"

// clusterSession is a session of an operator, as jsonSession is a user's. Cache
// c has four shards with two replicas each, on three nodes.
var clusterSession = []struct {
	path, body string
	status     int
	code       string
	want       string
}{
	{"NodeList", `{}`, 200, "", `{"nodes":[{"id":"1","state":"active","up":true,"here":true,"storeId":"store-1","version":"v0","features":["lease_free_reads"],"peerAddr":"felix-1:7381","httpAddr":"felix-1:7380","respAddr":"felix-1:7379","clockOffsetMillis":"0","ineligible":"","waiting":"","replicas":0,"owned":0},{"id":"2"`},
	{"ShardList", `{"cache":"c"}`, 200, "", `{"shards":[{"tenant":"default","namespace":"default","cache":"c","meta":false,"number":0,"id":"2","owner":"1","preferred":"1","term":"1","commit":"0","replicas":[{"node":"1","raftId":"1","want":"voter","have":"voter","match":"0","lag":"0","active":true,"differs":false},{"node":"2","raftId":"2"`},
	{"ShardList", `{}`, 200, "", `{"shards":[{"tenant":"","namespace":"","cache":"","meta":true,"number":0,"id":"1"`},
	{"ShardList", `{"tenant":"default"}`, 400, "invalid_argument", `cache name is empty`},
	{"ShardList", `{"cache":"none"}`, 404, "cache_not_found", `none`},
	{"ShardMove", `{"cache":"c","number":0,"from":"1","to":3}`, 200, "", `"owner":"3","preferred":"3","term":"2"`},
	{"ShardMove", `{"cache":"c","number":0,"from":"1","to":"3"}`, 400, "invalid_argument", `cannot go`},
	{"ShardMove", `{"cache":"c","number":0,"to":"3"}`, 400, "invalid_argument", `from is missing`},
	{"ShardMove", `{"cache":"c","number":0,"from":"3"}`, 400, "invalid_argument", `to is missing`},
	{"ShardMove", `{"cache":"c","number":4,"from":"3","to":"1"}`, 404, "shard_not_found", `no shard 4`},
	{"ShardMove", `{"cache":"c","number":-1,"from":"3","to":"1"}`, 404, "shard_not_found", `no shard -1`},
	{"ShardMove", `{"cache":"c","from":"3","to":"9"}`, 404, "node_not_found", `no node 9`},
	{"ShardPrefer", `{"cache":"c","number":0,"node":"2"}`, 200, "", `"owner":"2","preferred":"2"`},
	{"ShardPrefer", `{"cache":"c","number":0}`, 400, "invalid_argument", `node is missing`},
	{"ShardPrefer", `{"cache":"c","number":0,"node":"1"}`, 400, "invalid_argument", `no replica`},
	{"Topology", `{"cache":"c"}`, 200, "", `{"tenant":"default","namespace":"default","cache":"c","shards":[{"number":0,"firstSlot":0,"lastSlot":4095,"owner":"2","httpAddr":"felix-2:7380","respAddr":"felix-2:7379","nodes":["3","2"]},{"number":1,"firstSlot":4096`},
	{"Topology", `{}`, 400, "invalid_argument", `cache name is empty`},
	{"NodeDrain", `{"id":"3"}`, 200, "", `"state":"draining"`},
	{"NodeDrain", `{"id":"3","undo":true}`, 200, "", `"state":"active"`},
	{"NodeDrain", `{}`, 400, "invalid_argument", `id is missing`},
	{"NodeDrain", `{"id":"9"}`, 404, "node_not_found", `no node 9`},
	{"NodeRemove", `{"id":"3"}`, 200, "", `"state":"removed"`},
	{"NodeRemove", `{"id":"2"}`, 200, "", `"waiting":"there is no other broker for its replicas"`},
	{"NodeRemove", `{"id":"0"}`, 400, "invalid_argument", `id is missing`},
	{"FeatureList", `{}`, 200, "", `{"features":[{"name":"lease_free_reads","summary":"reads are confirmed by fences","finalized":false,"finalizedAtMillis":"0","lacking":[]},{"name":"not_everywhere"`},
	{"FeatureFinalize", `{"name":"lease_free_reads"}`, 200, "", `"finalized":true`},
	{"FeatureFinalize", `{"name":"not_everywhere"}`, 400, "invalid_argument", `[3]`},
	{"FeatureFinalize", `{"name":"never"}`, 404, "feature_not_found", `never`},
	{"FeatureFinalize", `{}`, 400, "invalid_argument", `name of the feature is missing`},
	{"NodeRename", `{}`, 404, "invalid_argument", `no such path`},
}

func TestClusterJSON(t *testing.T) {
	service := newModel(t)
	url, _ := start(t, service, Options{Cluster: model.NewCluster(service, 3)})
	for _, step := range clusterSession {
		resp, body := post(t, url+cluster+step.path, asJSON, step.body)
		if resp.StatusCode != step.status || resp.Header.Get("Felix-Error-Code") != step.code || !strings.Contains(body, step.want) {
			t.Errorf("%s %s: %d %q %s, want %d %q %s", step.path, step.body, resp.StatusCode, resp.Header.Get("Felix-Error-Code"), body,
				step.status, step.code, step.want)
		}
	}
}

// Without a Cluster there are no such methods, and an error says so.
func TestNoCluster(t *testing.T) {
	url, _ := start(t, newModel(t), Options{})
	if resp, body := post(t, url+cluster+"NodeList", asJSON, `{}`); resp.StatusCode != 404 || !strings.Contains(body, "no such path") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}

// sick is a Cluster whose brokers and replicas are not as they should be.
type sick struct{ felix.Cluster }

func (sick) Nodes(context.Context) ([]felix.NodeInfo, error) {
	return []felix.NodeInfo{{ID: 1 << 40, State: felix.NodeDraining, ClockOffset: -1500 * time.Millisecond, Ineligible: "its clock is wrong",
		Waiting: "shard 7", Replicas: 3, Owned: 2}}, nil
}

func (sick) Shards(context.Context, *felix.Scope) ([]felix.ShardInfo, error) {
	return []felix.ShardInfo{{ID: 7, Commit: 1 << 60, Replicas: []felix.ReplicaInfo{{Node: 2, RaftID: 5, Want: felix.ReplicaVoter, Have: felix.ReplicaLearner,
		Match: 3, Differs: true, Lag: 1<<60 - 3, Snapshot: &felix.SnapshotInfo{SentBytes: 5, EstimateBytes: 1 << 40}}}}}, nil
}

// Everything that can be wrong is shown.
func TestSickCluster(t *testing.T) {
	url, _ := start(t, newModel(t), Options{Cluster: sick{}})
	for method, want := range map[string]string{
		"NodeList": `{"nodes":[{"id":"1099511627776","state":"draining","up":false,"here":false,"storeId":"","version":"","features":[],"peerAddr":"","httpAddr":"","respAddr":"","clockOffsetMillis":"-1500","ineligible":"its clock is wrong","waiting":"shard 7","replicas":3,"owned":2}]}`,
		"ShardList": `{"shards":[{"tenant":"","namespace":"","cache":"","meta":false,"number":0,"id":"7","owner":"0","preferred":"0","term":"0","commit":"1152921504606846976",` +
			`"replicas":[{"node":"2","raftId":"5","want":"voter","have":"learner","match":"3","lag":"1152921504606846973","active":false,"snapshotSentBytes":"5","snapshotEstimateBytes":"1099511627776","differs":true}]}]}`,
	} {
		if _, body := post(t, url+cluster+method, asJSON, `{}`); body != want {
			t.Errorf("%s: %s, want %s", method, body, want)
		}
	}
}

package daemon

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/felix-go/felix/internal/broker"
	"github.com/felix-go/felix/internal/netloop"
	"github.com/felix-go/felix/internal/peer"
	"github.com/felix-go/felix/internal/redisapi"
)

// metrics are what /metrics shows beyond Go's own. The only label with more
// than a handful of values is the Redis command, whose names are bounded.
type metrics struct {
	syncSeconds     prometheus.Histogram
	checkpointSteps prometheus.Histogram
}

func newMetrics() *metrics {
	return &metrics{
		syncSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "felix_log_sync_seconds",
			Help:    "How long a synced write to the log took.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 16)}),
		checkpointSteps: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "felix_checkpoint_pause_seconds",
			Help:    "How long one slice of a checkpoint held up its worker.",
			Buckets: prometheus.ExponentialBuckets(20e-6, 2, 14)}),
	}
}

func (m *metrics) observeSync(d time.Duration)           { m.syncSeconds.Observe(d.Seconds()) }
func (m *metrics) observeCheckpointStep(d time.Duration) { m.checkpointSteps.Observe(d.Seconds()) }

func (m *metrics) register(r *prometheus.Registry, b *broker.Broker, resp *netloop.Server, redis *redisapi.Handler) {
	r.MustRegister(m.syncSeconds, m.checkpointSteps, &snapshot{broker: b, resp: resp, redis: redis})
}

// snapshot reads the counters of the parts when Prometheus asks.
type snapshot struct {
	broker *broker.Broker
	resp   *netloop.Server
	redis  *redisapi.Handler
}

// Describe implements prometheus.Collector: the metrics are told by Collect,
// unchecked, so that each is named in one place.
func (s *snapshot) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *snapshot) Collect(out chan<- prometheus.Metric) {
	counter := func(name, help string, v uint64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, float64(v))
	}
	gauge := func(name, help string, v int64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, float64(v))
	}
	b := s.broker.Stats()
	gauge("felix_caches", "Caches of this broker.", int64(b.Caches))
	gauge("felix_shards", "Shards of this broker.", int64(b.Shards))
	gauge("felix_shards_owned", "Shards that this broker owns.", int64(b.Owned))
	counter("felix_operations_total", "Operations evaluated.", b.Operations)
	gauge("felix_inflight_bytes", "Memory of operations that wait or are in flight.", b.InflightBytes)
	gauge("felix_record_bytes", "Memory of records.", b.RecordBytes)
	gauge("felix_dirty_bytes", "Memory of records that are not in the state store yet; at --record-memory writes wait.", b.DirtyBytes)
	gauge("felix_log_bytes", "What a restart would replay, over all shards; at 1 GiB writes wait.", b.LogBytes)
	counter("felix_log_commits_total", "Batches written to the log.", b.Log.Commits)
	counter("felix_log_syncs_total", "Batches written to the log and synced.", b.Log.Syncs)
	counter("felix_log_written_bytes_total", "Bytes written to the log.", b.Log.WrittenBytes)
	gauge("felix_log_tail_bytes", "Memory of the newest log entries.", b.Log.TailBytes)
	counter("felix_checkpoints_total", "Checkpoints written.", b.Checkpoints.Checkpoints)
	counter("felix_checkpoint_records_total", "Records written by checkpoints.", b.Checkpoints.Records)
	gauge("felix_state_disk_bytes", "Disk space of the state store.", int64(b.StateBytes))
	eligible := int64(0)
	if b.Eligible {
		eligible = 1
	}
	gauge("felix_clock_eligible", "1 where the clock lets this broker own shards.", eligible)
	out <- prometheus.MustNewConstMetric(prometheus.NewDesc("felix_clock_offset_seconds",
		"How far this broker's clock is ahead of the median of the other brokers'.", nil, nil), prometheus.GaugeValue, b.ClockOffset.Seconds())
	gauge("felix_replicas_lagging", "Replicas on other brokers of shards that this one owns which are behind.", b.Lagging)
	gauge("felix_replica_mismatches", "Logs and states of shards whose replicas are known to differ.", int64(b.Differing))
	counter("felix_replica_comparisons_total", "Answers of other brokers about replicas that were compared with this broker's.", b.Compared)
	counter("felix_state_hashes_total", "States of shards that were read to be compared.", b.StatesHashed)
	counter("felix_ownerships_total", "Times that this broker became the owner of a shard.", b.Traffic.Ownerships)
	counter("felix_forwarded_total", "Requests sent to the brokers that own their shards.", b.Traffic.Forwarded)
	counter("felix_forwarded_returned_total", "Of these, not evaluated there and sent on.", b.Traffic.Returned)
	counter("felix_forwarded_lost_total", "Of these, changes that were not answered.", b.Traffic.Lost)
	counter("felix_snapshots_sent_total", "Snapshots of shards sent to other brokers.", b.Traffic.SnapshotsSent)
	counter("felix_snapshots_received_total", "Snapshots of shards received from other brokers.", b.Traffic.SnapshotsReceived)
	gauge("felix_watchers", "Watches that this broker serves.", s.broker.Watchers())
	counter("felix_watch_skipped_total", "Changes left out of watches, which were told so: newer ones came before they were taken.", s.broker.SkippedChanges())
	s.collectLinks(out)
	n := s.resp.Stats()
	gauge("felix_resp_connections", "Open Redis connections.", n.Connections)
	counter("felix_resp_accepted_total", "Redis connections accepted.", n.Accepted)
	counter("felix_resp_refused_total", "Redis connections refused: there were too many.", n.Refused)
	counter("felix_resp_read_bytes_total", "Bytes read from Redis connections.", n.BytesIn)
	counter("felix_resp_written_bytes_total", "Bytes written to Redis connections.", n.BytesOut)
	gauge("felix_resp_unsent_bytes", "Memory of answers that Redis clients have not taken.", n.Unsent)
	counter("felix_resp_batches_total", "Batches of operations submitted by the RESP door.", n.Batches)
	counter("felix_resp_operations_total", "Operations submitted by the RESP door.", n.Ops)
	counter("felix_resp_paced_total", "Times the RESP door let requests gather while the disk was busy.", n.Paced)
	calls := prometheus.NewDesc("felix_resp_commands_total", "Redis commands called.", []string{"command"}, nil)
	failed := prometheus.NewDesc("felix_resp_command_errors_total", "Redis commands answered with an error.", []string{"command"}, nil)
	s.redis.CommandCounts(func(name string, c, f uint64) {
		out <- prometheus.MustNewConstMetric(calls, prometheus.CounterValue, float64(c), name)
		if f > 0 {
			out <- prometheus.MustNewConstMetric(failed, prometheus.CounterValue, float64(f), name)
		}
	})
}

// collectLinks tells of the links to other brokers, by node: there are at most
// felix.MaxNodes.
func (s *snapshot) collectLinks(out chan<- prometheus.Metric) {
	gauge := func(name, help string) func(node string, v float64) {
		desc := prometheus.NewDesc(name, help, []string{"node"}, nil)
		return func(node string, v float64) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, node)
		}
	}
	up := gauge("felix_peer_up", "1 where the node is reached, 0 where it is not.")
	raft := gauge("felix_peer_raft_queue_bytes", "Raft messages that wait to be sent to the node.")
	forward := gauge("felix_peer_forward_queue_bytes", "Forwarded operations that wait to be sent to the node.")
	count := func(name, help string) func(node, kind string, v uint64) {
		desc := prometheus.NewDesc(name, help, []string{"node", "kind"}, nil)
		return func(node, kind string, v uint64) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(v), node, kind)
		}
	}
	frames := count("felix_peer_frames_total", "Frames of Raft messages, calls, or answers to calls, sent to the node.")
	items := count("felix_peer_frame_items_total", "Raft messages, calls, or answers to calls in these frames.")
	for _, l := range s.broker.Links() {
		node, reached := strconv.FormatUint(l.Node, 10), 0.0
		if l.Up {
			reached = 1
		}
		up(node, reached)
		raft(node, float64(l.RaftBytes))
		forward(node, float64(l.ForwardBytes))
		for kind, sent := range map[string]peer.Sent{"raft": l.Raft, "call": l.Calls, "answer": l.Answers} {
			frames(node, kind, sent.Frames)
			items(node, kind, sent.Items)
		}
	}
}

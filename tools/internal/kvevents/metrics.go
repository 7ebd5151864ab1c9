package kvevents

import "github.com/prometheus/client_golang/prometheus"

var (
	descBatches = prometheus.NewDesc("skep_events_zmq_batches_total", "Batches of KV events published over ZeroMQ.", nil, nil)
	descBlocks  = prometheus.NewDesc("skep_events_zmq_blocks_total", "Blocks told of in them, by event: stored, removed.", []string{"event"}, nil)
	descSkipped = prometheus.NewDesc("skep_events_zmq_skipped_total", "Events of blocks whose namespace routers are not told of.", nil, nil)
	descBegun   = prometheus.NewDesc("skep_events_zmq_snapshots_total", "Snapshots of what is stored, begun.", nil, nil)
	descGaps    = prometheus.NewDesc("skep_events_zmq_gaps_total", "Events of the store that came too fast to be published; a snapshot follows.", nil, nil)
	descSubs    = prometheus.NewDesc("skep_events_zmq_subscribers", "Subscribers connected.", nil, nil)
	descSent    = prometheus.NewDesc("skep_events_zmq_sent_total", "Batches sent to subscribers.", nil, nil)
	descLost    = prometheus.NewDesc("skep_events_zmq_lost_total", "Batches that a slow subscriber did not take before they fell out of the buffer.", nil, nil)
	descReplays = prometheus.NewDesc("skep_events_zmq_replays_total",
		"Requests for batches that were missed, by answer: whole, cut (the buffer had no snapshot any more).", []string{"answer"}, nil)
	descRefused = prometheus.NewDesc("skep_events_zmq_refused_total", "Connections closed since the peer did not keep to ZMTP, or to its limits.", nil, nil)
	descBuffer  = prometheus.NewDesc("skep_events_zmq_buffer_bytes", "Batches held for subscribers and replays, in bytes.", nil, nil)
)

// Describe implements prometheus.Collector.
func (p *Publisher) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p *Publisher) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
	p.ring.mu.Lock()
	lost := p.ring.lost
	p.ring.mu.Unlock()
	held, _ := p.ring.held()
	c := &p.count
	send(descBatches, prometheus.CounterValue, c.batches.Load())
	send(descBlocks, prometheus.CounterValue, c.stored.Load(), "stored")
	send(descBlocks, prometheus.CounterValue, c.removed.Load(), "removed")
	send(descSkipped, prometheus.CounterValue, c.skipped.Load())
	send(descBegun, prometheus.CounterValue, c.snapshots.Load())
	send(descGaps, prometheus.CounterValue, c.gaps.Load())
	send(descSubs, prometheus.GaugeValue, c.subscribers.Load())
	send(descSent, prometheus.CounterValue, c.sent.Load())
	send(descLost, prometheus.CounterValue, lost)
	send(descReplays, prometheus.CounterValue, c.whole.Load(), "whole")
	send(descReplays, prometheus.CounterValue, c.cut.Load(), "cut")
	send(descRefused, prometheus.CounterValue, c.refused.Load())
	send(descBuffer, prometheus.GaugeValue, held)
}

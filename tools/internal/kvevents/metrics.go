package kvevents

import "github.com/prometheus/client_golang/prometheus"

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("skep_"+name, help, labels, nil)
}

var (
	descBatches = desc("events_zmq_batches_total", "Batches of KV events published over ZeroMQ.")
	descBlocks  = desc("events_zmq_blocks_total", "Blocks told of in them, by event: stored, removed.", "event")
	descSkipped = desc("events_zmq_skipped_total", "Events of blocks whose namespace routers are not told of.")
	descBegun   = desc("events_zmq_snapshots_total", "Snapshots of what is stored, begun.")
	descGaps    = desc("events_zmq_gaps_total", "Events of the store that came too fast; a snapshot follows.")
	descSubs    = desc("events_zmq_subscribers", "Subscribers connected.")
	descSent    = desc("events_zmq_sent_total", "Batches sent to subscribers.")
	descLost    = desc("events_zmq_lost_total", "Batches that fell out of the buffer before a subscriber took them.")
	descReplays = desc("events_zmq_replays_total", "Requests for missed batches, by answer: whole, cut (no snapshot held).",
		"answer")
	descRefused = desc("events_zmq_refused_total", "Connections closed whose peer did not keep to ZMTP or its limits.")
	descBuffer  = desc("events_zmq_buffer_bytes", "Bytes held for subscribers and replays.")
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

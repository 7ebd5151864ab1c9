package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/flow"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/tools/internal/member"
)

// A node sends the others the copies that they should have and do not: when it starts, when the map changes, when
// another node has been started, now and then besides, and when an operator asks.

// repairLooks is how often the other nodes are looked at. The first time is so long after the node's own start, when
// those that are started with it are there: who asks one that is not is told for a moment that it is away when it is
// there.
const repairLooks = 5 * time.Second

// repairs says whether the node sends copies: why not, where it could.
func (c *Config) repairs() (yes bool, why string) {
	if c.Peers.RepairRate <= 0 {
		return false, ""
	}
	if _, id, err := c.clusterMap(); err != nil || id == nil {
		return false, ""
	}
	if len(c.Credentials) > 0 && c.Peers.TokenFile == "" {
		return false, "there are credentials, and peers.token_file is empty: " +
			"give it a token of tenant '*' with rights read and write"
	}
	return true, ""
}

// repairer has one node repair.
type repairer struct {
	whole  *replication.Store
	others *others
	keeper *keeper.Keeper
	pace   flow.Options // but for Told
	every  time.Duration
	log    *slog.Logger
	wake   chan struct{}

	turn chan struct{} // has one element while one repairs

	mu   sync.Mutex
	now  member.Repair
	last *member.Repair       // that ended and was not stopped; nil: none has
	sum  replication.Repaired // of those that have ended
}

func (s *server) newRepairer(k *keeper.Keeper) *repairer {
	return &repairer{whole: s.whole, others: s.others, keeper: k, every: time.Duration(s.c.Peers.RepairEvery),
		pace: flow.Options{Rate: int64(s.c.Peers.RepairRate), IdleRate: int64(s.c.Peers.RepairIdleRate), Idle: s.idle},
		log:  s.log.With("part", "repair"), wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// run repairs until ctx ends.
func (r *repairer) run(ctx context.Context) {
	look := time.NewTicker(repairLooks)
	defer look.Stop()
	due := time.NewTimer(r.every)
	defer due.Stop()
	epoch, known := uint32(0), sights{}
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if r.pace.Idle != nil {
				r.pace.Idle() // so that it is known when a repair begins
			}
			again := first
			if m := r.whole.Map(); m.Epoch != epoch {
				epoch, again = m.Epoch, true
			}
			if !known.see(r.others.incarnations(ctx)) && !again {
				continue
			}
		case <-r.wake:
		case <-due.C:
		}
		_ = r.once(ctx)
		due.Reset(r.every)
	}
}

// once repairs, when who repairs now is done.
func (r *repairer) once(ctx context.Context) error {
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return &skep.Error{Op: "repair", Kind: skep.Deadline, Err: ctx.Err()}
	}
	r.mu.Lock()
	r.now = member.Repair{Running: true, Number: r.now.Number + 1, Runs: r.now.Runs, Began: time.Now()}
	r.mu.Unlock()
	o := replication.RepairOptions{Keeper: r.keeper, Pace: r.pace}
	o.Pace.Told = func(rate int64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now.Rate = rate
	}
	o.Progress = func(x replication.Repaired) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.now.Repaired = x
	}
	out, err := r.whole.Repair(ctx, o)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Running, r.now.Ended, r.now.Repaired = false, time.Now(), out
	r.now.Runs++
	r.sum.Copied += out.Copied
	r.sum.Bytes += out.Bytes
	if err != nil {
		r.now.Error = err.Error()
	}
	stopped := err != nil && ctx.Err() != nil
	if now := r.now; !stopped {
		r.last = &now
	}
	switch {
	case err != nil && !stopped:
		r.log.Error("copies that other nodes should have were not all sent", "error", err, "copied", out.Copied)
	case out.Copied > 0:
		r.log.Info("sent copies to nodes that should have them",
			"copied", out.Copied, "bytes", out.Bytes, "blocks", out.Blocks, "declined", out.Declined, "away", out.Away,
			"unread", out.Unread, "took", time.Since(r.now.Began).Round(time.Millisecond))
	}
	return err
}

// job is a repair that an operator steers. Paused, it ends, and goes through all blocks again when it is resumed.
func (r *repairer) job(js *jobs) *job {
	about := "sends other nodes the copies that they should have by the map and do not"
	return &job{name: "repair", about: about, restarts: true, run: func(ctx context.Context, j *job) error {
		ended := make(chan error, 1)
		go func() { ended <- r.once(ctx) }()
		look := time.NewTicker(200 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				_ = js.step(ctx, j, -1, repairText(r.state().Repair)) // once sees for itself that ctx has ended
			case err := <-ended:
				if err != nil {
					return err
				}
				return js.step(ctx, j, 1, repairText(r.state().Repair))
			}
		}
	}}
}

func repairText(s member.Repair) string {
	return fmt.Sprintf("%d blocks looked at; %d copies, %.1f MiB sent; %d declined, %d away, %d not to be read", s.Blocks,
		s.Copied, float64(s.Bytes)/(1<<20), s.Declined, s.Away, s.Unread)
}

// state is how it stands.
func (r *repairer) state() member.Repairs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return member.Repairs{Repair: r.now, Next: r.now.Number + 1, Last: r.last}
}

// incarnations is when the Stores of the other nodes were opened: the zero time where one does not answer.
func (o *others) incarnations(ctx context.Context) map[uint64]time.Time {
	ctx, cancel := context.WithTimeout(ctx, repairLooks)
	defer cancel()
	out := map[uint64]time.Time{}
	var mu sync.Mutex
	var wait sync.WaitGroup
	for id, p := range o.peers() {
		wait.Go(func() {
			st, err := p.Stats(ctx)
			mu.Lock()
			defer mu.Unlock()
			if out[id] = st.Opened; err != nil {
				out[id] = time.Time{}
			}
		})
	}
	wait.Wait()
	return out
}

// awayLooks is at how many looks in succession a node does not answer before it counts as one that was away, and is
// sent what it missed when it is back. One that is so busy that it answers now and then is left in peace: each repair
// has it asked for all its blocks, and makes it busier. What it declined meanwhile it gets when the next repair is
// due.
const awayLooks = 3

// sights is what was seen of the other nodes.
type sights map[uint64]sight

type sight struct {
	opened time.Time // its Store
	missed int       // looks in succession that it has not answered
}

// see takes in a look, and says whether there is a node that is new, was started, or is back.
func (s sights) see(look map[uint64]time.Time) (again bool) {
	for id := range s {
		if _, there := look[id]; !there { // the map has it no more
			delete(s, id)
		}
	}
	for id, opened := range look {
		was, known := s[id]
		switch {
		case !opened.IsZero():
			again = again || !known || !was.opened.Equal(opened) || was.missed >= awayLooks
			s[id] = sight{opened: opened}
		case known:
			s[id] = sight{was.opened, was.missed + 1}
		}
	}
	return again
}

// adminRepair has the node repair, where it is asked to begin, and says how it stands.
func (s *server) adminRepair(in json.RawMessage) (json.RawMessage, error) {
	const op = "repair"
	if s.repair == nil {
		return nil, &skep.Error{Op: op, Kind: skep.Unsupported, Field: "server", Value: "one that sends no copies",
			Limit: "a node of a cluster with peers.repair_rate above 0 and, where there are credentials, peers.token_file"}
	}
	var ask member.AskRepair
	d := json.NewDecoder(bytes.NewReader(in))
	d.DisallowUnknownFields()
	if err := d.Decode(&ask); err != nil {
		return nil, &skep.Error{Op: op, Kind: skep.Invalid, Field: "cluster repair", Err: err}
	}
	state := s.repair.state() // before it begins: what begins from here on is what the caller waits for
	if ask.Begin {
		select {
		case s.repair.wake <- struct{}{}:
		default: // it is about to begin
		}
	}
	return json.Marshal(state)
}

// repairMetrics shows it to Prometheus.
type repairMetrics struct{ r *repairer }

var (
	descRepairCopies = prometheus.NewDesc("skep_repair_copies_total",
		"Copies sent to nodes that lacked them.", nil, nil)
	descRepairBytes = prometheus.NewDesc("skep_repair_bytes_total",
		"Payload of copies sent to nodes that lacked them.", nil, nil)
	descRepairRate = prometheus.NewDesc("skep_repair_rate_bytes",
		"Bytes a second that the repair under way keeps to; 0: none.", nil, nil)
	descRepairLacks = prometheus.NewDesc("skep_repair_missing",
		"Copies that nodes lack after the last repair: declined, away, or not to be read.", []string{"why"}, nil)
	descRepairStrays = prometheus.NewDesc("skep_repair_strays",
		"Blocks that by the map are not this node's, as the last repair saw.", nil, nil)
	descRepairEnded = prometheus.NewDesc("skep_repair_ended_timestamp_seconds",
		"When the last repair ended that nobody stopped; 0: none has.", nil, nil)
)

// Describe implements prometheus.Collector.
func (repairMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m repairMetrics) Collect(out chan<- prometheus.Metric) {
	m.r.mu.Lock()
	now, sum := m.r.now, m.r.sum
	var last member.Repair
	if m.r.last != nil {
		last = *m.r.last
	}
	m.r.mu.Unlock()
	if now.Running {
		sum.Copied += now.Copied
		sum.Bytes += now.Bytes
	}
	send := func(d *prometheus.Desc, kind prometheus.ValueType, n float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, n, labels...)
	}
	send(descRepairCopies, prometheus.CounterValue, float64(sum.Copied))
	send(descRepairBytes, prometheus.CounterValue, float64(sum.Bytes))
	send(descRepairRate, prometheus.GaugeValue, float64(now.RateNow()))
	send(descRepairLacks, prometheus.GaugeValue, float64(last.Declined), "declined")
	send(descRepairLacks, prometheus.GaugeValue, float64(last.Away), "away")
	send(descRepairLacks, prometheus.GaugeValue, float64(last.Unread), "unread")
	send(descRepairStrays, prometheus.GaugeValue, float64(last.Strays))
	ended := 0.0
	if !last.Ended.IsZero() {
		ended = float64(last.Ended.UnixMilli()) / 1000
	}
	send(descRepairEnded, prometheus.GaugeValue, ended)
}

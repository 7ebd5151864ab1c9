package loan

import (
	"os"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
)

// Counts is what a lender did since it began.
type Counts struct {
	Reclaims    int64   `json:"reclaims"`     // moves up that waited for a borrower
	ReclaimMs   float64 `json:"reclaim_ms"`   // the last of them (ms)
	ReclaimSum  float64 `json:"reclaim_sum"`  // all of them together (s)
	ReclaimMost float64 `json:"reclaim_most"` // the longest (ms)
	Ended       int64   `json:"ended"`        // borrowers ended because they did not answer
	Died        int64   `json:"died"`         // borrowers whose process ended while they had units, those among them
}

func (c *Counts) reclaimed(d time.Duration) {
	c.Reclaims++
	c.ReclaimMs = float64(d) / 1e6
	c.ReclaimSum += d.Seconds()
	c.ReclaimMost = max(c.ReclaimMost, c.ReclaimMs)
}

// Status is how a lender stands.
type Status struct {
	Name      string `json:"name"`       // of the model
	Device    string `json:"device"`     // the GPU
	Simulated bool   `json:"simulated"`  // no figure of it is a measurement
	PID       int    `json:"pid"`        // the lender's process
	UnitBytes int64  `json:"unit_bytes"` // by which the border moves (bytes)
	Units     int    `json:"units"`      // of the arena (units)
	Floor     int    `json:"floor"`      // never lent (units)
	Border    int    `json:"border"`     // the lender's own now (units)
	// from here on units may be lent; above border while units are on their way back (units)
	Offer     int              `json:"offer"`
	Used      int              `json:"used"`      // of the lender's own, in use (blocks)
	Epoch     uint64           `json:"epoch"`     // moves of the border so far
	Counts    Counts           `json:"counts"`    // what has happened since it began
	Borrowers []BorrowerStatus `json:"borrowers"` // who borrows from it
}

// BorrowerStatus is how one borrower stands.
type BorrowerStatus struct {
	Number int    `json:"number"` // the borrower's number
	Name   string `json:"name"`   // the borrower's name
	PID    int    `json:"pid"`    // the borrower's process
	// idle, holds, gives back, silent (its connection is gone, its process is not) or to end
	State   string  `json:"state"`
	Epoch   uint64  `json:"epoch"`    // of the agreement
	From    int     `json:"from"`     // units from here on may be in use by it (units)
	To      int     `json:"to"`       // up to here (units)
	Keeps   int     `json:"keeps"`    // from here on, once it has given back what is asked for (units)
	LeaseMs float64 `json:"lease_ms"` // it may still be silent for (ms)
}

// Status is how the lender stands now.
func (l *Lender) Status() Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Status{
		Name: l.o.Name, Device: l.o.Device.Name(), Simulated: l.o.Device.Simulated(), PID: os.Getpid(), UnitBytes: l.o.Unit.Bytes, Units: l.o.Units,
		Floor: l.o.Floor, Border: l.arena.Border(), Offer: l.offer, Used: l.arena.Used(0), Epoch: l.arena.Epoch(), Counts: l.counts,
		Borrowers: []BorrowerStatus{},
	}
	loans := l.machine.Loans()
	for _, p := range l.peersLocked() {
		b := BorrowerStatus{Number: p.id, Name: p.name, PID: p.proc.pid, State: "idle"}
		for _, x := range loans {
			if x.Borrower != p.id {
				continue
			}
			b.Epoch, b.From, b.To, b.Keeps = x.Epoch, x.Units.From, x.Units.To, x.Keeps.From
			b.LeaseMs = float64(x.Until-now()) / 1e6
			switch {
			case x.Killed:
				b.State = "to end"
			case x.Revoking:
				b.State = "gives back"
			case p.conn == nil:
				b.State = "silent"
			default:
				b.State = "holds"
			}
		}
		s.Borrowers = append(s.Borrowers, b)
	}
	return s
}

// Ask asks the lender at a socket how it stands. Unavailable when nobody listens there.
func Ask(socket string) (Status, error) {
	const op = "ask a lender"
	if supported != nil {
		return Status{}, supported
	}
	c, err := dial(op, socket)
	if err != nil {
		return Status{}, err
	}
	defer c.Close()
	f, file, err := ask(op, socket, c, frame{Ask: true})
	if file != nil {
		file.Close()
	}
	if err == nil && f.Status == nil {
		err = &skep.Error{Op: op, Kind: skep.Unavailable, Field: "socket", Value: socket, Err: errProtocol}
	}
	if err != nil {
		return Status{}, err
	}
	return *f.Status, nil
}

var (
	labels       = []string{"arena"}
	descUnits    = prometheus.NewDesc("skep_gpu_arena_units", "Units of a lender's arena, by whose they are.", []string{"arena", "whose"}, nil)
	descBytes    = prometheus.NewDesc("skep_gpu_arena_bytes", "Bytes of a lender's arena.", labels, nil)
	descEpoch    = prometheus.NewDesc("skep_gpu_border_moves_total", "Moves of the border.", labels, nil)
	descReclaims = prometheus.NewDesc("skep_gpu_reclaims_total", "Moves of the border that waited for a borrower.", labels, nil)
	descReclaim  = prometheus.NewDesc("skep_gpu_reclaim_seconds_total", "Time that moves of the border waited.", labels, nil)
	descEnded    = prometheus.NewDesc("skep_gpu_borrowers_ended_total", "Borrowers with memory whose process ended, by why.", []string{"arena", "why"}, nil)
	descLent     = prometheus.NewDesc("skep_gpu_borrower_units", "Units a borrower may be using.", []string{"arena", "borrower", "number"}, nil)
)

// Describe implements prometheus.Collector.
func (l *Lender) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (l *Lender) Collect(out chan<- prometheus.Metric) {
	s := l.Status()
	put := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, more ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, append([]string{s.Name}, more...)...)
	}
	lent := 0
	for _, b := range s.Borrowers {
		lent += b.To - b.From
		put(descLent, prometheus.GaugeValue, float64(b.To-b.From), b.Name, strconv.Itoa(b.Number))
	}
	put(descUnits, prometheus.GaugeValue, float64(s.Border), "lender")
	put(descUnits, prometheus.GaugeValue, float64(lent), "borrowers")
	put(descUnits, prometheus.GaugeValue, float64(s.Units-s.Border-lent), "offered")
	put(descBytes, prometheus.GaugeValue, float64(int64(s.Units)*s.UnitBytes))
	put(descEpoch, prometheus.CounterValue, float64(s.Epoch))
	put(descReclaims, prometheus.CounterValue, float64(s.Counts.Reclaims))
	put(descReclaim, prometheus.CounterValue, s.Counts.ReclaimSum)
	put(descEnded, prometheus.CounterValue, float64(s.Counts.Ended), "ended")
	put(descEnded, prometheus.CounterValue, float64(s.Counts.Died-s.Counts.Ended), "died")
}

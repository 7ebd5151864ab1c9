package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/gpu"
	"github.com/skepkv/skep/layout/elastic"
)

// Link is how fast copies are.
type Link struct {
	BytesPerSecond float64
	Latency        time.Duration
}

// Options are those of New.
type Options struct {
	Devices     int   // 1 to 64
	MemoryBytes int64 // of each device
	Seed        uint64
	// HBM is copying within a device, Peer each direction between two, and Host each
	// direction between all devices together and the host (a shared PCIe switch).
	HBM, Peer, Host Link
}

// H20 is the paper's server, as far as it says: four GPUs of 96 GB, NVLink of 400 GB/s both
// ways together, PCIe 4.0 of 32 GB/s shared by all. The latencies are ours.
func H20() Options {
	return Options{
		Devices: 4, MemoryBytes: 96 << 30, Seed: 1,
		HBM:  Link{2e12, 2 * time.Microsecond},
		Peer: Link{200e9, 3 * time.Microsecond},
		Host: Link{32e9, 10 * time.Microsecond},
	}
}

// World is a server with GPUs.
type World struct {
	options Options
	mu      sync.Mutex
	rng     *rand.Rand
	now     time.Duration
	devices []*Device
	streams []*stream
	links   map[route]*link
	running []*op // started, not done
}

// route names a link: a device's own memory (from == to), a direction between two, or a
// direction between the host (-1) and all devices.
type route struct{ from, to int }

const host = -1

type link struct {
	Link
	active int // transfers that share it now
}

// New makes a server. Invalid when an option is out of its limits.
func New(o Options) (*World, error) {
	const op = "simulated GPUs"
	if o.Devices < 1 || o.Devices > 64 {
		return nil, skep.Invalidf(op, "devices", o.Devices, "1 to 64")
	}
	if o.MemoryBytes < elastic.Granule || o.MemoryBytes > 1<<40 {
		return nil, skep.Invalidf(op, "memory in bytes", o.MemoryBytes, "2 MiB to 1 TiB")
	}
	for _, l := range []struct {
		name string
		Link
	}{{"HBM", o.HBM}, {"peer link", o.Peer}, {"host link", o.Host}} {
		if !(l.BytesPerSecond > 0) || l.Latency < 0 {
			return nil, skep.Invalidf(op, l.name, fmt.Sprintf("%+v", l.Link), "a bandwidth, and a latency of 0 or more")
		}
	}
	w := &World{options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), links: map[route]*link{}}
	for i := range o.Devices {
		w.devices = append(w.devices, &Device{w: w, index: i, peers: map[int]bool{i: true}})
	}
	return w, nil
}

// Device is the i-th GPU.
func (w *World) Device(i int) *Device { return w.devices[i] }

// Now is the virtual time.
func (w *World) Now() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

func (w *World) linkOf(from, to int) *link {
	r := route{from, to}
	var l Link
	switch {
	case from == host || to == host:
		// One switch for all: the direction alone tells.
		if from == host {
			r = route{host, 0}
		} else {
			r = route{0, host}
		}
		l = w.options.Host
	case from == to:
		l = w.options.HBM
	default:
		l = w.options.Peer
	}
	if w.links[r] == nil {
		w.links[r] = &link{Link: l}
	}
	return w.links[r]
}

// until runs the world until ok, which is asked with the lock held. It gives up when ctx
// ends; when nothing can happen any more it waits for somebody to queue work.
func (w *World) until(ctx context.Context, ok func() (bool, error)) error {
	for {
		w.mu.Lock()
		for {
			done, err := ok()
			if done || err != nil {
				w.mu.Unlock()
				return err
			}
			if ctx.Err() != nil || !w.stepLocked() {
				break
			}
		}
		w.mu.Unlock()
		select {
		case <-ctx.Done():
			return &skep.Error{Op: "wait for a GPU", Kind: skep.Deadline, Err: ctx.Err()}
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// stepLocked starts what can start and advances time to the next thing that happens. False:
// nothing is under way.
func (w *World) stepLocked() bool {
	w.startLocked()
	if len(w.running) == 0 {
		return false
	}
	for _, o := range w.running { // who shares a link until the next event
		if o.onLink(w.now) && !o.counted {
			o.counted = true
			o.link.active++
		}
	}
	next := time.Duration(-1)
	for _, o := range w.running {
		if t := o.nextEvent(w.now); next < 0 || t < next {
			next = t
		}
	}
	w.advanceLocked(next)
	return true
}

// startLocked starts the first op of every stream that may, in random order: a GPU promises
// none between streams.
func (w *World) startLocked() {
	for again := true; again; {
		again = false
		for _, i := range w.rng.Perm(len(w.streams)) {
			s := w.streams[i]
			if len(s.queue) == 0 || s.queue[0].started || s.hung {
				continue
			}
			o := s.queue[0]
			if s.device.failed != nil { // queued work of a failed device ends without effect
				o.end()
				again = true
				continue
			}
			if o.kind == opWait && o.counter.value < o.value {
				continue
			}
			if o.instant() {
				o.end()
				again = true
				continue
			}
			o.start()
			w.running = append(w.running, o)
		}
	}
}

// advanceLocked moves time to t, and everything under way with it.
func (w *World) advanceLocked(t time.Duration) {
	dt := (t - w.now).Seconds()
	for _, o := range w.running {
		if o.counted {
			o.left -= dt * o.link.BytesPerSecond / float64(max(o.link.active, 1))
		}
	}
	w.now = t
	// Touches first, in order of their moments; then ends.
	for {
		var first *op
		for _, o := range w.running {
			if o.due(w.now) && (first == nil || o.touches[0] < first.touches[0]) {
				first = o
			}
		}
		if first == nil {
			break
		}
		first.touch()
	}
	rest := w.running[:0]
	for _, o := range w.running {
		if o.over(w.now) {
			o.end()
		} else {
			rest = append(rest, o)
		}
	}
	clear(w.running[len(rest):])
	w.running = rest
}

var _ gpu.Device = (*Device)(nil)

package observe

import (
	"context"
	"encoding/binary"
	"github.com/skepkv/skep/store/internal/locks"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
)

// Profile watches which keys are asked for again, to say what more drives or DRAM would
// gain. Lookups pick the sampled keys, a few instructions a key, and hand them to one
// goroutine, a full batch at a time. Waking it costs as much as looking some hundred keys up,
// and the processor it then takes is the one a client's answer waits for: it rests between
// wakings, and batches gather meanwhile. When it falls behind, references are left out and counted.
type Profile struct {
	queue   chan []uint64
	dropped atomic.Int64

	pendingMu locks.Mutex[locks.ProfilePending]
	pending   []uint64 // sampled, and not handed over

	mu    locks.Mutex[locks.Profile]
	reuse *index.Reuse
}

const (
	profileQueue = 256
	profileBatch = 1024 // hashes handed over at once
	profileRoom  = 256  // hashes of a lookup picked before they join the others'
	// ProfileBytes is what a profile takes at most besides the curve itself: with the batch being filled
	// and the one being noted.
	ProfileBytes = (profileQueue + 2) * profileBatch * 8

	profileRest = 5 * time.Millisecond // between wakings; at 40,000 lookups a second of 2,000 keys the queue holds it

	odd = 0x9e3779b97f4a7c15 // spreads keys of engines that count
)

// NewProfile keeps so many samples; nil when there are to be none.
func NewProfile(samples int) (*Profile, error) {
	if samples < 0 {
		return nil, nil
	}
	r, err := index.NewReuse(samples)
	if err != nil {
		return nil, err
	}
	return &Profile{reuse: r, queue: make(chan []uint64, profileQueue)}, nil
}

// Saw notes a lookup's keys.
func (p *Profile) Saw(instance uint32, keys []skep.Key) {
	if p == nil {
		return
	}
	p.reuse.Add(len(keys))
	below := p.reuse.Threshold()
	var room [profileRoom]uint64
	n := 0
	for i := range keys {
		k := &keys[i]
		// Called by name: a call through a variable is not inlined.
		a, b := binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])
		c, d := binary.LittleEndian.Uint64(k[16:]), binary.LittleEndian.Uint64(k[24:])
		h := index.ReuseHash(a^d*odd^uint64(instance)<<32, b^c*odd)
		room[n] = h // which keys are sampled no processor can guess: no jump depends on it
		if h < below {
			n++
		}
		if n == len(room) {
			p.join(room[:n])
			n = 0
		}
	}
	p.join(room[:n])
}

// join adds hashes to those that wait for the batch to be full.
func (p *Profile) join(hashes []uint64) {
	p.pendingMu.Lock()
	defer p.pendingMu.Unlock()
	for len(hashes) > 0 {
		if p.pending == nil {
			p.pending = make([]uint64, 0, profileBatch)
		}
		n := min(len(hashes), profileBatch-len(p.pending))
		p.pending, hashes = append(p.pending, hashes[:n]...), hashes[n:]
		if len(p.pending) == profileBatch {
			p.sendLocked()
		}
	}
}

// sendLocked hands the batch over. REQUIRES: p.pendingMu.
func (p *Profile) sendLocked() {
	select {
	case p.queue <- p.pending:
		p.pending = nil
	default:
		p.dropped.Add(int64(len(p.pending)))
		p.pending = p.pending[:0]
	}
}

// Run takes batches into the curve, until ctx ends.
func (p *Profile) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case batch := <-p.queue:
			p.mu.Lock()
			p.noteLocked(batch)
			p.drainLocked()
			p.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(profileRest):
		}
	}
}

// drainLocked takes the batches that wait into the curve. REQUIRES: p.mu.
func (p *Profile) drainLocked() {
	for range len(p.queue) {
		select {
		case batch := <-p.queue:
			p.noteLocked(batch)
		default:
			return
		}
	}
}

// noteLocked takes a batch into the curve. REQUIRES: p.mu.
func (p *Profile) noteLocked(batch []uint64) {
	for _, h := range batch {
		p.reuse.Note(h)
	}
}

// settleLocked takes into the curve what waits, handed over or not. REQUIRES: p.mu.
func (p *Profile) settleLocked() {
	p.drainLocked()
	p.pendingMu.Lock()
	defer p.pendingMu.Unlock()
	p.noteLocked(p.pending)
	p.pending = p.pending[:0]
}

// Bytes is the memory it takes at most.
func (p *Profile) Bytes() int64 {
	if p == nil {
		return 0
	}
	return p.reuse.Bytes() + ProfileBytes
}

// curvePoints are the sizes the curve is shown at, as shares of what the devices hold.
var curvePoints = []float64{1. / 64, 1. / 32, 1. / 16, 1. / 8, 1. / 4, 1. / 2, 1, 2, 4, 8}

// Stats is the profile beside what a store has room for: so many blocks, whose payload is blockBytes, with room for
// dram and devices bytes of it.
func (p *Profile) Stats(blocks, blockBytes, dram, devices int64) skep.ReuseStats {
	if blocks == 0 {
		return p.Snapshot(0, 0, 0)
	}
	return p.Snapshot(max(1, blockBytes/blocks), dram, devices)
}

// Snapshot is the profile in numbers. meanBytes is the size of a stored block, dram and
// devices the bytes that blocks have there.
func (p *Profile) Snapshot(meanBytes, dram, devices int64) skep.ReuseStats {
	if p == nil {
		return skep.ReuseStats{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settleLocked()
	r := p.reuse
	out := skep.ReuseStats{References: int64(r.References()), SampleRate: r.Rate(), Dropped: p.dropped.Load()}
	if meanBytes <= 0 || out.References == 0 {
		return out
	}
	at := func(bytes float64) float64 { return r.HitRatio(bytes / float64(meanBytes)) }
	d, m := float64(devices), float64(dram)
	out.DRAM, out.TwiceDRAM = at(m), at(2*m)
	out.Devices, out.TwiceDevices = at(d), at(2*d)
	for _, share := range curvePoints {
		if n := d * share / float64(meanBytes); n >= 1 {
			out.Curve = append(out.Curve, skep.ReusePoint{Blocks: int64(n), Bytes: int64(d * share), HitRatio: r.HitRatio(n)})
		}
	}
	return out
}

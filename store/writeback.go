package store

import (
	"context"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/memory"
)

// newWriteback makes the filter of Cache blocks; nil: all are admitted.
func (s *Store) newWriteback() (*admission.Filter[*incoming], error) {
	o := &s.options
	if o.Admission == admission.All || o.ReadOnly {
		return nil, nil
	}
	return admission.New(writebackHost{s}, admission.Config{Policy: o.Admission, Ghosts: o.AdmissionGhosts,
		CacheBytes: o.CacheBytes, WriteBudget: o.WriteBudget, BatchBytes: appender.MaxBytes, BatchBlocks: appender.MaxBlocks})
}

// Waits is what the admission filter knows of a block.
func (in *incoming) Waits() index.WaitingBlock {
	return index.WaitingBlock{FP: in.FP, Parent: in.Parent, HasParent: in.HasParent, Bytes: in.Size,
		Partial: in.Record.ValidTokens != 0}
}

// writebackHost is the store as the admission filter sees it: admission.Host.
type writebackHost struct{ s *Store }

func (h writebackHost) Now() time.Time { return h.s.now() }

func (h writebackHost) Written() int64 { return h.s.bytesWritten() }

func (h writebackHost) Writable() (n int64) {
	for _, d := range h.s.allDrives() {
		if d != nil && !d.Removed.Load() && !d.Retired.Load() {
			n++
		}
	}
	return n
}

func (h writebackHost) Take(in *incoming) bool {
	if !h.s.holds(in) {
		return false
	}
	in.Parts = nil // they are in the DRAM tier, and looked for there
	return true
}

func (h writebackHost) Land(list []*incoming) { h.s.land(list) }

func (h writebackHost) OnDrives(fp index.Fingerprint) bool {
	e, ok := h.s.index.Resolve(fp)
	return ok && e.Location != 0
}

func (h writebackHost) Withdraw(ns *namespaces.Namespace, in *incoming) bool {
	return h.s.withdraw(ns, in, skep.Admission)
}

func (h writebackHost) Write(ctx context.Context, ns *namespaces.Namespace, list []*incoming) {
	h.s.keepPromised(ns, h.s.commitHeld(ctx, ns, list))
}

func (h writebackHost) Accept() (end func()) { return h.s.puts.Accepted.Begin() }

func (h writebackHost) Behind(f func()) { h.s.background.Go(f) }

// bytesWritten is what the devices have written since the open: payload, logs, cleaning.
func (s *Store) bytesWritten() (n int64) {
	for _, d := range s.allDrives() {
		n += int64(d.Dev.Stats().Writes.Bytes)
	}
	return n
}

// share points in's parts at its copy in the DRAM tier, and keeps that in place until
// what it appends to bufs is released.
func (s *Store) share(in *incoming, bufs *[]*memory.Buffer) bool {
	in.Parts = make([]skep.Part, len(in.held))
	for i, h := range in.held {
		b, ok := s.cache.Share(h.id, h.v)
		*bufs = append(*bufs, b...)
		if !ok || len(b) != 1 {
			return false
		}
		p := &in.Record.Parts[i]
		in.Parts[i] = skep.Part{Name: p.Name, Bytes: b[0].Bytes()[:p.Size]}
	}
	return true
}

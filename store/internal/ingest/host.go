package ingest

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/namespaces"
)

// host is the writer as the admission filter sees it.
type host struct {
	*Writer
	Drives
}

var _ admission.Host[*Block] = host{}

// Take implements admission.Host.
func (h host) Take(in *Block) bool {
	if !h.holds(in) {
		return false
	}
	in.Parts = nil // they are in the DRAM tier, and looked for there
	return true
}

// Land implements admission.Host.
func (h host) Land(list []*Block) { h.land(list) }

// OnDrives implements admission.Host.
func (h host) OnDrives(fp index.Fingerprint) bool {
	e, ok := h.Index.Resolve(fp)
	return ok && e.Location != 0
}

// Withdraw implements admission.Host.
func (h host) Withdraw(ns *namespaces.Namespace, in *Block) bool {
	return h.Writer.Withdraw(ns, in, skep.Admission)
}

// Write implements admission.Host.
func (h host) Write(ctx context.Context, ns *namespaces.Namespace, list []*Block) {
	h.keepPromised(ns, h.commitHeld(ctx, ns, list))
}

// Accept implements admission.Host.
func (h host) Accept() (end func()) { return h.Puts.Accepted.Begin() }

// Behind implements admission.Host.
func (h host) Behind(f func()) { h.Background.Go(f) }

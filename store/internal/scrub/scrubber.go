package scrub

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// Config is what a store gives of itself to be scrubbed.
type Config struct {
	Context    context.Context // ends with the store
	Closing    <-chan struct{} // the store's end has begun
	Background *sync.WaitGroup // what outlives a call
	Gate       *gate.Gate
	ReadOnly   bool
	Names      *namespaces.Table
	Catalog    *catalog.Catalog
	Index      *index.Index
	Space      *space.Table
	Root       *watermark.Root
	Entering   *namespaces.Sections // who writes entries of namespaces
	Counts     *observe.Counts
	Works      *observe.Works
	Log        *slog.Logger
	Bad        *observe.Seldom // lines about wrong bytes
	Timeout    time.Duration   // of an operation
	Store      segment.StoreID
	Host       Host
}

// Host is the store as who mends it sees it.
type Host interface {
	// Rewrite writes a block, whose stored form is right, to a new place. ErrMoved: there is nothing left to be
	// written.
	Rewrite(ctx context.Context, ns *namespaces.Namespace, b *Block, stored []byte) error
	// Forget takes a block of a pinned group out of the store no copy of which is right. False: it was not there.
	Forget(g *space.Group, b *Block) bool
	// Damaged tells the store's readers of a damaged block; gone: nothing is left of it.
	Damaged(ns *namespaces.Namespace, rec *segment.Record, gone bool)
	// LogEntries writes entries that are no blocks to the drives' logs.
	LogEntries(ctx context.Context, entries []byte) error
}

// Scrubber finds what is wrong on the drives of a store, and mends it. Make it with New.
type Scrubber struct {
	Config
	repairs repairs
}

// New makes one.
func New(c Config) *Scrubber {
	s := &Scrubber{Config: c}
	s.repairs.m, s.repairs.wake = map[index.Fingerprint]layout.Location{}, make(chan struct{}, 1)
	return s
}

// ErrMoved says that a block was deleted, put again or moved before it could be written again.
var ErrMoved = &skep.Error{Op: "move block", Kind: skep.NotFound}

package ingest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/admission"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/pieces"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
)

// Config is what a writer works with.
type Config struct {
	Context    context.Context // ends with the store
	Closing    <-chan struct{} // the store's end has begun
	Background *sync.WaitGroup // what outlives a call
	Gate       *gate.Gate
	Names      *namespaces.Table
	Keys       *keybook.Book
	Index      *index.Index
	Rows       *commit.Rows
	Appends    *appender.Appender
	Puts       *puts.Table
	Root       *watermark.Root
	Arena      *memory.Arena
	Cache      *memory.Cache // nil without a DRAM tier
	CacheBytes int64         // of that
	OpenBytes  int64         // what blocks that are written part by part may take, all of them
	Count      *observe.Counts
	Log        *slog.Logger
	// GivesWay forgets a block that cannot be read now, for one that is about to be put in its place. False: it stays.
	GivesWay func(ns *namespaces.Namespace, fp index.Fingerprint, e index.Entry) bool
}

// Drives is what an admission filter is told of time and drives.
type Drives interface {
	Now() time.Time
	Written() int64  // bytes that the drives have written since the open: payload, logs, cleaning
	Writable() int64 // drives that are written to now
}

// Writer takes blocks into a store. It is safe for any number of goroutines. Make it with New.
type Writer struct {
	Config
	Filter *admission.Filter[*Block] // decides which Cache blocks go to the drives; nil: all
	Open   pieces.Memory             // of blocks that are written part by part

	hoarded func() // called when a block's copy is in the DRAM tier and not yet shown; tests come in between there
}

// New makes a writer that admits every block.
func New(c Config) *Writer { return &Writer{Config: c} }

// Admit gives the writer, before its first put, a filter of Cache blocks. Error: Invalid.
func (w *Writer) Admit(d Drives, c admission.Config) (err error) {
	c.CacheBytes, c.BatchBytes, c.BatchBlocks = w.CacheBytes, appender.MaxBytes, appender.MaxBlocks
	w.Filter, err = admission.New(host{w, d}, c)
	return err
}

var errClosed = &skep.Error{Op: "store", Kind: skep.Closed}

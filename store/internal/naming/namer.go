package naming

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/watermark"
)

// Config is what a namer changes, and by what.
type Config struct {
	Context    context.Context // ends with the store
	Closing    chan struct{}   // closed when the store begins to close
	Background *sync.WaitGroup // what outlives a call
	Catalog    *catalog.Catalog
	Names      *namespaces.Table
	Keys       *keybook.Book
	Index      *index.Index
	Root       *watermark.Root
	Rows       *commit.Rows
	Logs       *devlog.Log
	Events     *observe.Events
	Wait       time.Duration    // for others who make, purge or delete one
	PerTenant  int              // namespaces a tenant may have
	Wall       func() time.Time // when a namespace is made
}

// Namer makes, purges and deletes namespaces. It is safe for any number of goroutines. Make it with New.
type Namer struct {
	Config
	turn     limits.Turn // of who does; before space.Opening
	sweeping atomic.Bool // see Sweep
}

// New makes a namer.
func New(c Config) *Namer { return &Namer{Config: c, turn: limits.NewTurn()} }

// take waits for the turn.
func (m *Namer) take(ctx context.Context, op string) error {
	return m.turn.Take(ctx, m.Wait, m.Closing, op, "namespace being made")
}

// save commits b with new high-water marks and keeps them. It waits for the commit
// also when the caller's context ends: a commit that came later would have given out an
// instance that is given out again. REQUIRES: the turn.
func (m *Namer) save(b *catalog.Batch, next watermark.Numbers) error {
	return m.Root.SaveNumbers(m.Context, m.Catalog, b, next, m.Rows.Unsure)
}

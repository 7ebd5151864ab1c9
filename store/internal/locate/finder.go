package locate

import (
	"context"
	"log/slog"
	"sync"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/lookup"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// Config is what a finder looks in, and who is told of what it finds.
type Config struct {
	Context    context.Context // ends with the store
	Background *sync.WaitGroup // what outlives a call
	Gate       *gate.Gate
	Calls      *limits.Calls
	Names      *namespaces.Table
	Index      *index.Index
	Space      *space.Table
	Members    *members.Set
	Rows       *commit.Rows
	Lookups    *lookup.Finder // what was leased of a chain, and which programs it is of
	Cache      *memory.Cache  // nil without a DRAM tier
	Keys       *crypt.Keys
	Count      *observe.Counts
	Log        *slog.Logger
	Bad        *observe.Seldom            // lines about wrong bytes
	Reused     func(fp index.Fingerprint) // is told of blocks that were restored from the DRAM tier
	// RepairSoon has a block written again of which a copy is wrong; nil: nothing is written.
	RepairSoon func(fp index.Fingerprint, l layout.Location)
}

// Finder finds blocks. It is safe for any number of goroutines. Make it with New.
type Finder struct {
	Config
	logs logCache // of a store whose catalog has failed
}

// New makes a finder.
func New(c Config) *Finder { return &Finder{Config: c} }

// Unpin lets a block's group go.
func (l *Finder) Unpin(g restore.Stripe) { l.Space.Unpin(g.(*space.Group)) }

package store

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/admin"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/ingest"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/lookup"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/moving"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/naming"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/opening"
	"github.com/skepkv/skep/store/internal/pinned"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
)

// Store is the embedded engine: a skep.Store on devices. Make it with Open.
//
// The order of its locks is the table of package locks.
type Store struct {
	options Options
	log     *slog.Logger
	lifetime
	thisRun
	held
	telling
	whose
	upkeep

	catalog     *catalog.Catalog
	catalogRoom *room.Room
	opening     *opening.Opening // how it was found or made, and which store it is
	root        *watermark.Root  // numbers, and the row that keeps them
	members     *members.Set
	space       *space.Table
	index       *index.Index

	rows     *commit.Rows // and of the index: what changes them
	appends  *appender.Appender
	logs     *devlog.Log
	puts     *puts.Table
	ingest   *ingest.Writer
	lookups  *lookup.Finder
	restores restore.Restorer
	sidecars *sidecar.Rows
	admin    *admin.Server // nil: none
}

// lifetime is how long a store lives, and what ends it.
type lifetime struct {
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	closing    chan struct{}
	gate       *gate.Gate // Close waits for the calls it let in
	closeOnce  sync.Once
	closeErr   error
	outlived   bool // background work did not end with Close
	background sync.WaitGroup
}

// thisRun is which open this is.
type thisRun struct {
	opened  time.Time
	epoch   uint64
	lasting watermark.Lasting
}

// held is the memory a store works in, and what its callers may keep of it.
type held struct {
	arena *pinned.Arena
	cache *memory.Cache // nil without a DRAM tier
	calls *limits.Calls // made once the namespaces are known
}

// telling is what a store says of itself.
type telling struct {
	events  *observe.Events
	count   observe.Counts
	metrics *observe.Collector // nil without a registerer
	profile *observe.Profile   // of reuse; nil: none
	works   observe.Works
	wear    observe.Wear
	logTail *observe.LogTail
	badLog  observe.Seldom // lines about wrong bytes
}

// whose is the namespaces and tenants of a store.
type whose struct {
	names  *namespaces.Table
	naming *naming.Namer
	keys   *keybook.Book // of tenants whose payload is encrypted; made once the store's id is known
}

// upkeep is what works on blocks that nobody asks for.
type upkeep struct {
	cleaner *clean.Cleaner
	moving  *moving.Mover
	mends   *scrub.Scrubber
}

var _ skep.Store = (*Store)(nil)

// rootRow is what the root row says besides numbers.
func (s *Store) rootRow() (st catalog.StoreState) {
	st.StoreID, st.Secret = s.opening.ID, s.opening.Secret
	st.Epoch, st.Relog, st.Limits = s.epoch, s.opening.Relog, s.opening.Limits
	st.Lasting = s.lasting.Millis()
	st.NextGroup = s.space.Last()
	return st
}

// Alloc implements skep.Allocator.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	if n < 1 {
		return nil, skep.Invalidf("alloc", "bytes", n, "at least 1")
	}
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	if n > int64(s.arena.MaxBlock()) {
		return nil, &skep.Error{Op: "alloc", Kind: skep.NoMemory, Field: "bytes", Value: n, Limit: "at most " + itoa(s.arena.MaxBlock()) + " in one piece"}
	}
	b, err := s.arena.Alloc(ctx, int(n), memory.BudgetIO)
	if err != nil {
		return nil, &skep.Error{Op: "alloc", Kind: skep.NoMemory, Err: err}
	}
	return b, nil
}

func itoa(n int) string     { return strconv.Itoa(n) }
func itoa64(n int64) string { return strconv.FormatInt(n, 10) }

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
	opened  time.Time

	catalog *catalog.Catalog
	names   *namespaces.Table
	index   *index.Index
	arena   *memory.Arena
	cache   *memory.Cache // nil without a DRAM tier
	space   *space.Table
	events  *observe.Events
	cleaner *clean.Cleaner
	members *members.Set
	moving  *moving.Mover

	rows        *commit.Rows // and of the index: what changes them
	appends     *appender.Appender
	logs        *devlog.Log
	catalogRoom *room.Room
	puts        *puts.Table
	count       observe.Counts
	lookups     *lookup.Finder
	pinned      pinning
	metrics     *observe.Collector // nil without a registerer
	ingest      *ingest.Writer
	profile     *observe.Profile // of reuse; nil: none
	works       observe.Works
	calls       limits.Calls
	restores    restore.Restorer
	wear        observe.Wear
	admin       *admin.Server // nil: none
	logTail     *observe.LogTail

	opening  *opening.Opening // how it was found or made, and which store it is
	root     *watermark.Root  // numbers, and the row that keeps them
	sidecars *sidecar.Rows
	mends    *scrub.Scrubber
	badLog   observe.Seldom // lines about wrong bytes
	naming   *naming.Namer
	epoch    uint64
	lead     time.Duration // of Lasting before now
	keys     *keybook.Book // of tenants whose payload is encrypted; made once the store's id is known

	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
	closing    chan struct{}
	gate       *gate.Gate // Close waits for the calls it let in
	closeOnce  sync.Once
	closeErr   error
	outlived   bool // background work did not end with Close
	background sync.WaitGroup
}

var _ skep.Store = (*Store)(nil)

func (s *Store) state() string {
	if err := s.rows.Failed(); err != nil {
		return "failed: " + err.Error()
	}
	if s.options.ReadOnly {
		return "read-only"
	}
	if why := s.catalogRoom.Why(); why != "" {
		return why
	}
	return "ok"
}

// rootRow is what the root row says besides numbers.
func (s *Store) rootRow() (st catalog.StoreState) {
	st.StoreID, st.Secret = s.opening.ID, s.opening.Secret
	st.Epoch, st.Relog, st.Limits = s.epoch, s.opening.Relog, s.opening.Limits
	st.Lasting = uint64(max(s.Lasting().UnixMilli(), 0))
	st.NextGroup = s.space.Last()
	return st
}

// Alloc implements skep.Allocator.
func (s *Store) Alloc(ctx context.Context, n int64) (skep.Memory, error) {
	if err := s.gate.Enter(ctx); err != nil {
		return nil, err
	}
	defer s.gate.Leave()
	if n < 1 {
		return nil, skep.Invalidf("alloc", "bytes", n, "at least 1")
	}
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

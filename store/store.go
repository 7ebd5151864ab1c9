package store

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/admin"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/ingest"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/moving"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Store is the embedded engine: a skep.Store on devices. Make it with Open.
//
// The order of its locks is the table of package locks.
type Store struct {
	options Options
	log     *slog.Logger
	opened  time.Time
	lock    *dirlock.Lock
	limits  madeWith
	places  *Places // where its devices are; nil in tests with devices of their own
	id      segment.StoreID

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
	leases      *leases.Table
	pins        *leases.Pins
	pinned      pinning
	metrics     *observe.Collector // nil without a registerer
	ingest      *ingest.Writer
	profile     *observe.Profile // of reuse; nil: none
	programs    observe.Programs
	works       observe.Works
	calls       limits.Calls
	restores    restore.Restorer
	wear        observe.Wear
	admin       *admin.Server // nil: none
	logTail     *observe.LogTail

	opening  opening
	root     *watermark.Root // numbers, and the row that keeps them
	sweeping atomic.Bool     // see sweep
	sidecars *sidecar.Rows
	mends    *scrub.Scrubber
	badLog   observe.Seldom // lines about wrong bytes
	naming   limits.Turn    // makes and purges namespaces; before space.opening
	epoch    uint64
	lead     time.Duration // of Lasting before now
	secret   segment.Secret
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

// opening is what an open knows of itself until it is over.
type opening struct {
	exclusive bool     // read-only, and nobody else has it open
	relog     bool     // a rebuild left it to this open to log what only the catalog knows
	aside     bool     // the catalog that is there is to be set aside
	known     []string // where it said that devices are
	making    bool     // a store is being made, or could not be
	made      []string // files and directories this call made
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
	st.StoreID, st.Secret = s.id, s.secret
	st.Epoch, st.Relog, st.Limits = s.epoch, s.opening.relog, s.limits.Limits
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

package opening

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// Config is where a store is to be, and what a new one is made with.
type Config struct {
	Context      context.Context // ends with the store
	Dir          string
	CatalogDir   string   // where the catalog is
	NamedCatalog string   // the same where it was named; else ""
	Devices      []string // named ones
	Own          bool     // devices are the caller's own: paths are names, and none of the file system's
	Count, Given int      // devices a new store has, and how many were asked for; 0: nobody said
	Capacity     int64    // bytes; 0: no cap
	SegmentBytes int64    // 0: by what devices have
	BlockBytes   int64
	Reckon       func(paths []string) int64 // bytes at which devices without a cap are reckoned
	ReadOnly     bool
	MustExist    bool // no store is made
	NoRebuild    bool
	NoStamp      bool // devices are not told whose they are
	Refuse       bool // the store does not open without one of its drives
	Whatever     bool // it does, whatever is lost with it
	OpenDevice   func(i int, path string, create bool, size int64) (device.Device, error)
	RemoveList   func(string) error // see making.New
	Timeout      time.Duration
	Wall         func() time.Time
	Log          *slog.Logger
	Options      catalog.Options
	Room         *room.Room
	Root         *watermark.Root
	Rows         *commit.Rows
	// Settle gives what the store has from now on, and refuses another cap than it has.
	Settle func(was catalog.Limits) (catalog.Limits, error)
}

// Opening finds a store, or makes it, once; what it found is read by any number of goroutines. Make it with New.
type Opening struct {
	Config
	Members *members.Set // which it fills
	Space   *space.Table

	Aside     bool     // the catalog that is there is to be set aside
	Known     []string // where that one said that devices are
	Exclusive bool     // read-only, and nobody else has the store open

	Lock    *dirlock.Lock // nil: read-only
	Catalog *catalog.Catalog
	Places  *places.Places // where devices are; nil for the caller's own
	ID      segment.StoreID
	Secret  segment.Secret
	Limits  catalog.Limits // what the store was made with

	oldNames []string                 // Devices as they were given, where they were set aside
	toName   atomic.Pointer[[]string] // what ToName gives
	Relog    bool                     // a rebuild left it to this open to log what only the catalog knows
	Restamp  bool                     // a superblock says something else than Limits, gone and live
	gone     []uint16                 // numbers of drives that a rebuild went on without, by the catalog
	live     int                      // drives beside those, by the catalog

	names   *namespaces.Table // of a rebuild
	missing int               // devices that a rebuild has not found, of as many as the superblocks say
	before  int               // devices that earlier ones went on without
	left    []lack            // what lay among its devices, and is left alone
	making  bool              // a store is being made, or could not be
	made    []string          // files and directories this call made
}

// New makes an opening. Members and Space are to be given before it is used.
func New(c Config) *Opening { return &Opening{Config: c} }

// Find finds the store, or makes it, and gives its root row.
func (p *Opening) Find(ctx context.Context) (root catalog.StoreState, err error) {
	if err := p.enter(); err != nil {
		return root, err
	}
	if err := p.openCatalog(); err != nil {
		return root, err
	}
	root, err = p.Catalog.Store(ctx)
	fresh := skep.KindOf(err) == skep.NotFound
	if err != nil && !fresh {
		return root, err
	}
	if fresh && p.ReadOnly {
		return root, p.noStore()
	}
	if fresh {
		p.making = true
		var rebuilt bool
		if rebuilt, err = p.rebuildIfLost(ctx); rebuilt {
			p.making, fresh = false, false
			root, err = p.Catalog.Store(ctx)
		} else if err == nil && p.MustExist {
			err = p.noStore()
		} else if err == nil {
			root, err = p.create(ctx)
		}
	}
	if fresh || err != nil {
		return root, err
	}
	if !p.ReadOnly {
		p.clearList()
	}
	p.Relog = root.Relog
	if p.Limits, err = p.Settle(root.Limits); err != nil {
		return root, err
	}
	p.ID, p.Secret = root.StoreID, root.Secret
	return root, p.openDrives(ctx)
}

// enter takes the directory, which it makes where there is none, and what stands in the way of the catalog out of it.
func (p *Opening) enter() error {
	if !p.ReadOnly {
		if _, err := os.Stat(p.Dir); errors.Is(err, fs.ErrNotExist) {
			if p.MustExist {
				return p.noStore()
			}
			p.made = append(p.made, p.Dir)
		}
		if err := notACatalog(p.Dir); err != nil {
			return err
		}
		if err := os.MkdirAll(p.Dir, 0o755); err != nil {
			return dirlock.CannotWrite("open store", p.Dir, err)
		}
		lock, err := dirlock.Take(p.Dir, false)
		if err != nil {
			return err
		}
		p.Lock = lock
	}
	if p.Aside {
		if err := p.otherFormat(); err != nil {
			return err
		}
		return p.setAside("open store")
	}
	if p.NamedCatalog != "" && !p.ReadOnly {
		if err := p.place("open store").Open(); err != nil {
			p.making = true // nothing is left
			return err
		}
	}
	return nil
}

func (p *Opening) noStore() error {
	return &skep.Error{Op: "open store", Kind: skep.NotFound, Field: "dir", Value: p.Dir,
		Limit: "a store; make one by opening it for writing"}
}

// Abandon says that the open has failed. What it has opened is closed next, and then Undo.
func (p *Opening) Abandon() {
	if p.making && p.Lock != nil && p.Lock.Made {
		p.Lock.Remove = true
	}
}

// Undo removes what was made of a store that could not be: it leaves nothing that would keep the next try from it.
func (p *Opening) Undo() {
	if !p.making {
		return
	}
	for _, path := range slices.Backward(p.made) {
		remove := os.RemoveAll
		if path == p.Dir {
			remove = os.Remove // somebody may have put something there
		}
		if err := remove(path); err != nil {
			p.Log.Warn("left behind by a failed create", "path", path, "error", err)
		}
	}
}

package recovery

import (
	"log/slog"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/segment"
)

// Config is what an open has found, and what it loads into.
type Config struct {
	Catalog     *catalog.Catalog
	Names       *namespaces.Table // empty
	Space       *space.Table      // empty
	Members     *members.Set
	Root        *watermark.Root
	Keys        *keybook.Book
	Secret      segment.Secret
	Log         *slog.Logger
	ReadOnly    bool
	Alone       bool // nobody else has the store open, so that nobody writes to it meanwhile
	WithoutKeys bool // go on though a tenant whose blocks are encrypted has no key
	Whatever    bool // go on without a drive, whatever is lost with it
	Timeout     time.Duration
}

// Loader loads one catalog, once. Its methods are called in the order of the package's comment. Make it with New.
type Loader struct {
	Config
	Index    *index.Index    // empty; since Blocks
	wasOpen  []*space.Group  // when the store ended
	leftFree map[uint32]bool // groups that were cleaned, whose headers may not say so
	found    [2]uint64       // of the groups there are: the first opening's sequence number, and the end
}

// New makes a loader.
func New(c Config) *Loader { return &Loader{Config: c, leftFree: map[uint32]bool{}} }

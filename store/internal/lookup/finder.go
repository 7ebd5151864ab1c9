package lookup

import (
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/leases"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// Config is what a finder looks in, and who is told of what was looked up.
type Config struct {
	Names    *namespaces.Table
	Index    *index.Index
	Rows     *commit.Rows
	Space    *space.Table
	Members  *members.Set
	Puts     *puts.Table
	Cache    *memory.Cache     // nil without a DRAM tier
	Restores *restore.Restorer // which reckons how long a restore takes, and is told of hints
	Count    *observe.Counts
	Profile  *observe.Profile // of reuse; nil: none
	Clock    func() time.Time
	Epoch    uint64 // of this open: listings of others begin anew
}

// Finder looks up blocks. It is safe for any number of goroutines. Make it with New.
type Finder struct {
	Config
	Leases   *leases.Table
	Pins     *leases.Pins
	Programs observe.Programs // whose blocks hints named
}

// New makes the finder of a store that has promised nothing yet.
func New(c Config) *Finder {
	return &Finder{Config: c, Leases: leases.New(c.Index), Pins: leases.NewPins(c.Index)}
}

// Expire forgets what was promised until now.
func (l *Finder) Expire(now time.Time) {
	l.Leases.Expire(now)
	l.Pins.Expire(now)
}

// Covered is how many leading blocks of a chain the caller's lease covers.
func (l *Finder) Covered(a *restore.Asked) int {
	return l.Leases.Covered(a.Lease, leases.Chain{Instance: a.NS.Instance, Tag: a.Tag, Blocks: len(a.Keys),
		At: func(n int) index.Fingerprint { return l.Names.Fingerprint(a.NS.Instance, a.Tag, a.Keys[n-1]) }}, l.Clock())
}

package clean

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
)

// Config is what a cleaner cleans, and by what.
type Config struct {
	Context      context.Context // ends with the store
	Closing      <-chan struct{} // the store's end has begun
	Catalog      *catalog.Catalog
	Names        *namespaces.Table
	Index        *index.Index
	Space        *space.Table
	Rows         *commit.Rows
	Root         *watermark.Root
	Appends      *appender.Appender
	Logs         *devlog.Log
	Count        *observe.Counts
	Log          *slog.Logger
	Clock        func() time.Time
	Tight        func() bool         // the index is nearly full
	Expire       func(now time.Time) // ends promises, every second
	Sweep        func()              // looks after the catalog, every second, unless the store has failed
	Exact        bool                // the policy has an exact order, in which blocks go one by one
	SpaceTimeout time.Duration       // of who waits for room
}

// Cleaner makes free groups: it takes the sealed group whose content is worth least,
// writes what is worth keeping to another, drops the rest, and frees it. Cleaning is
// eviction: nothing else drops committed blocks for space.
type Cleaner struct {
	Config
	excused int // rounds in a row, see anew; the cleaner's goroutine only
	buf     []byte
	told    time.Time // when a failure was logged last
	// Loan is groups that a compaction under way uses and is about to give back: nothing
	// is dropped to make up for them, only groups are cleaned that hold nothing.
	Loan  atomic.Int32
	empty bool // see needed; the cleaner's goroutine only
	asked struct {
		mu   locks.Mutex[locks.Cleaner]
		list []*cleaning // to be cleaned, needed or not
	}
	gain struct { // see gains
		part   int
		shares bool
	}
	// promised says that the catalog promises what the log of a freed group said; the cleaner's
	// goroutine only.
	promised bool
	churn    churn
	tidy     bool         // the oldest group keeps too many tombstones: carry.go
	Tidied   atomic.Int64 // groups that were written again for that
}

// New makes a cleaner of groups.
func New(c Config) *Cleaner { return &Cleaner{Config: c, gain: gains[0]} }

// Start cleans until the store closes: as soon as groups run short, and what it is asked to. in waits for its end.
func (c *Cleaner) Start(in *sync.WaitGroup) {
	wake := c.Space.Woken()
	in.Go(func() { c.run(wake) })
}

func (c *Cleaner) run(wake <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-c.Closing:
			c.end()
			return
		case <-wake:
		case <-tick.C:
			now := c.Clock()
			c.Index.Tick(now)
			c.Expire(now)
			if c.Rows.Failed() == nil {
				c.Logs.Retry()
				c.Logs.ReconcileStale(c.Context)
				c.Sweep()
			}
		}
		if c.Rows.Failed() == nil { // a failed store frees nothing
			c.Space.Unopen()
		}
		c.Space.Regain()
		if c.Rows.Failed() == nil {
			c.keepPromises()
			c.answer()
			c.tidyOldest()
		}
		for c.goesOn() {
			was := c.Space.Stirred()
			ok, err := c.One(c.Context)
			if err != nil && c.Context.Err() == nil && c.mayTell() {
				c.Log.Error("cleaning failed", "error", err)
			}
			c.Space.Regain()
			c.keepPromises()
			if !ok {
				empty := c.empty // only groups that hold nothing were looked for
				if !empty && c.mayYield() && c.yield() || err == nil && c.anew(was) {
					continue
				}
				if !empty && c.needed() && !c.empty && !c.Space.Soon() {
					c.Space.Fruitlessly()
				}
				break
			}
			c.excused = 0
		}
	}
}

// mayTell says whether to log a failure: once a minute, since the next round may fail as this one did.
func (c *Cleaner) mayTell() bool {
	now := time.Now()
	if now.Sub(c.told) <= time.Minute {
		return false
	}
	c.told = now
	return true
}

// needed says whether puts may soon find no group to open, and notes whether that is only
// because of what is on loan.
func (c *Cleaner) needed() bool {
	free := c.Space.FreeSoon()
	needed := free+int(c.Loan.Load()) <= c.Space.KeptFree || c.Tight()
	c.empty = !needed && free <= c.Space.KeptFree
	return needed || c.empty
}

// stirs is how many rounds in a row may end without a free group for the reason that something stirred meanwhile,
// before they are fruitless all the same.
const stirs = 16

// anew says whether a round that freed nothing is to be begun again: something stirred since it began.
func (c *Cleaner) anew(was uint64) bool {
	if c.Space.Stirred() == was || c.excused == stirs {
		return false
	}
	c.excused++
	return true
}

// goesOn says whether to clean one more group. Who closes waits for this one, so another is not begun then, however
// much there were to gain.
func (c *Cleaner) goesOn() bool {
	return !c.isClosing() && c.Rows.Failed() == nil && c.needed()
}

func (c *Cleaner) isClosing() bool {
	select {
	case <-c.Closing:
		return true
	default:
		return c.Context.Err() != nil
	}
}

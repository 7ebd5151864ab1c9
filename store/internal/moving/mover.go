package moving

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/report"
)

// Config is what a mover moves, and by what.
type Config struct {
	Context     context.Context // ends with the store
	Closing     <-chan struct{} // the store's end has begun
	Background  *sync.WaitGroup // what outlives a call
	Gate        *gate.Gate
	Catalog     *catalog.Catalog
	Names       *namespaces.Table
	Index       *index.Index
	Space       *space.Table
	Members     *members.Set
	Rows        *commit.Rows
	Appends     *appender.Appender
	Cleaner     *clean.Cleaner
	Works       *observe.Works
	Count       *observe.Counts
	Log         *slog.Logger
	Full        func() bool   // the catalog has no room: nothing is moved in the background
	Every       time.Duration // how often there may be something to move
	Retry       time.Duration // a group that could not be moved is left alone for so long
	Rate        int64         // bytes a second in the background; 0: as the drives are idle
	NoRebalance bool          // not in the background
	OpTimeout   time.Duration // of wiping a drive
}

// Mover moves blocks, for one reason at a time. It is safe for any number of goroutines. Make it with New.
type Mover struct {
	Config
	wake  chan struct{}
	turn  chan struct{} // held by who moves blocks
	stuck stuck

	mu     locks.Mutex[locks.Tasks]
	totals map[string]report.Progress
	asked  map[*space.Drive]int // drains of it that somebody waits for, and that count what they do
}

// New makes a mover that does what it is asked to.
func New(c Config) *Mover {
	return &Mover{Config: c, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		totals: map[string]report.Progress{}, asked: map[*space.Drive]int{}, stuck: stuck{until: map[space.ID]time.Time{}}}
}

// Start moves, until the store closes, what there is a reason to move.
func (m *Mover) Start() { m.Background.Go(m.run) }

// Kick has the mover look for something to move now.
func (m *Mover) Kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Take waits until nobody moves blocks; Give ends the turn. Errors: Deadline, Closed.
func (m *Mover) Take(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return &skep.Error{Op: "move blocks", Kind: skep.Deadline, Err: ctx.Err()}
	case <-m.Closing:
		return gate.ErrClosed
	}
}

// Give ends the turn.
func (m *Mover) Give() { <-m.turn }

// enter begins a call that moves blocks, or in a dry run says what it would do: that goes in a store that is
// opened for reading, too.
func (m *Mover) enter(ctx context.Context, op string, o report.MoveOptions) error {
	if o.DryRun {
		return m.Gate.Enter(ctx)
	}
	return m.Gate.EnterWrite(ctx, op)
}

// enterOf is enter of a call about the drive of a name. The gate is left where there is none.
func (m *Mover) enterOf(ctx context.Context, op, name string, o report.MoveOptions) (*space.Drive, error) {
	if err := m.enter(ctx, op, o); err != nil {
		return nil, err
	}
	d, err := m.Members.Find(op, name)
	if err != nil {
		m.Gate.Leave()
	}
	return d, err
}

// ask notes that somebody drains a drive, and nobody else needs to; done ends that.
func (m *Mover) ask(d *space.Drive) (done func()) {
	add := func(n int) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked[d] += n
	}
	add(1)
	return func() { add(-1); m.Kick() }
}

// isAsked says whether somebody drains a drive.
func (m *Mover) isAsked(d *space.Drive) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked[d] > 0
}

// Names of tasks.
const (
	taskHeal      = "re-replicate"
	taskDrain     = "drain"
	taskRebalance = "rebalance"
	taskCompact   = "compact"
)

// note adds to what tasks have done so far.
func (m *Mover) note(p report.Progress) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.totals[p.Task]
	sum.Task, sum.Device = p.Task, p.Device
	sum.GroupsDone++
	sum.Blocks += p.Blocks
	sum.Bytes += p.Bytes
	sum.Unreadable += p.Unreadable
	sum.GivenUp += p.GivenUp
	sum.Evicted += p.Evicted
	sum.Seconds += p.Seconds
	m.totals[p.Task] = sum
}

// Tasks is what was moved since the open, by task.
func (m *Mover) Tasks() []report.Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []report.Progress
	for _, name := range []string{taskHeal, taskDrain, taskRebalance, taskCompact} {
		if p, ok := m.totals[name]; ok {
			out = append(out, p)
		}
	}
	return out
}

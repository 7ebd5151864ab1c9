package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/time/rate"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/wire/httpapi"
	"github.com/skepkv/skep/wire/resp"
)

// segmentsOf is the stripe map of the embedded store, nil for others.
func segmentsOf(st skep.Store) func(context.Context) (httpapi.Segments, error) {
	m, ok := skep.As[*store.Store](st)
	if !ok {
		return nil
	}
	return func(ctx context.Context) (out httpapi.Segments, err error) {
		sm, err := m.StripeMap(ctx)
		if err != nil {
			return out, err
		}
		out.Devices, out.Groups = []httpapi.SegmentDevice{}, []httpapi.SegmentGroup{}
		for _, d := range sm.Devices {
			out.Devices = append(out.Devices, httpapi.SegmentDevice(d))
		}
		for _, g := range sm.Groups {
			out.Groups = append(out.Groups, httpapi.SegmentGroup{
				Group: int64(g.Group), State: g.State, Devices: g.Devices, Segments: g.Segments, Blocks: g.Blocks,
				CapacityBytes: g.CapacityBytes, LiveBytes: g.LiveBytes, HotBytes: g.HotBytes, Age: g.Age,
			})
		}
		return out, nil
	}
}

// jobsOf lists the background work that a store offers.
func jobsOf(st skep.Store, js *jobs) []*job {
	list := []*job{{name: "flush", about: "waits until every accepted block is on the drives", run: func(ctx context.Context, j *job) error {
		if err := js.step(ctx, j, -1, "waiting"); err != nil {
			return err
		}
		if err := st.Flush(ctx); err != nil {
			return err
		}
		return js.step(ctx, j, 1, "done "+time.Now().Format(time.TimeOnly))
	}}}
	m, ok := skep.As[*store.Store](st)
	if !ok {
		list = append(list, &job{name: "check", about: "reads every block without a salt and compares its checksums, at 64 MiB a second", run: func(ctx context.Context, j *job) error {
			return check(ctx, st, js, j)
		}})
	} else {
		list = append(list,
			&job{name: "scrub", about: "reads every copy of everything at 64 MiB a second, and mends what is wrong from what is right", run: func(ctx context.Context, j *job) error {
				return scrub(ctx, m, js, j)
			}},
			&job{name: "compact", about: "rewrites groups with holes, chains in order; resumes with what is left", restarts: true, run: func(ctx context.Context, j *job) error {
				r, err := m.Compact(ctx, store.MoveOptions{Progress: js.moved(ctx, j)})
				return js.done(ctx, j, r.Progress, err)
			}},
			&job{name: "rebalance", about: "moves blocks to drives that came later; resumes with what is left", restarts: true, run: func(ctx context.Context, j *job) error {
				p, err := m.Rebalance(ctx, store.MoveOptions{Progress: js.moved(ctx, j)})
				return js.done(ctx, j, p, err)
			}})
	}
	return list
}

// scrub tells how far a scrub is, and pauses it where it tells.
func scrub(ctx context.Context, s *store.Store, js *jobs, j *job) error {
	told := func(r store.ScrubReport) (float64, string) {
		share := -1.0
		if r.OfGroups > 0 {
			share = min(float64(r.Groups)/float64(r.OfGroups), 1)
		}
		return share, fmt.Sprintf("%d blocks, %.1f MiB read; %d repaired, %d lost, %d not read, %d faults", r.Blocks, float64(r.Bytes)/(1<<20), r.Repaired, r.Lost, r.Unread, int64(len(r.Faults))+r.MoreFaults)
	}
	r, err := s.Scrub(ctx, store.ScrubOptions{Rate: checkRate, Progress: func(r store.ScrubReport) {
		share, text := told(r)
		_ = js.step(ctx, j, share, text) // the scrub sees for itself that ctx has ended
	}})
	if err != nil {
		return err
	}
	_, text := told(r)
	return js.step(ctx, j, 1, text)
}

// moved tells how far moving blocks is.
func (js *jobs) moved(ctx context.Context, j *job) func(store.Progress) {
	return func(p store.Progress) {
		share := -1.0
		if p.Groups > 0 {
			share = min(float64(p.GroupsDone)/float64(p.Groups), 1)
		}
		_ = js.step(ctx, j, share, movedText(p))
	}
}

func (js *jobs) done(ctx context.Context, j *job, p store.Progress, err error) error {
	if err != nil {
		return err
	}
	return js.step(ctx, j, 1, movedText(p))
}

func movedText(p store.Progress) string {
	return fmt.Sprintf("%d of %d groups; %d blocks, %.1f MiB moved", p.GroupsDone, p.Groups, p.Blocks, float64(p.Bytes)/(1<<20))
}

const (
	checkRate  = 64 << 20 // bytes a second
	checkBatch = 64       // blocks of a namespace read together
)

// check reads all blocks of a snapshot of the store's events.
func check(ctx context.Context, st skep.Store, js *jobs, j *job) error {
	before, err := st.Stats(ctx)
	if err != nil {
		return err
	}
	chained := map[skep.NamespaceID]bool{}
	spaces, err := st.Namespaces(ctx)
	if err != nil {
		return err
	}
	for _, n := range spaces {
		chained[n.ID] = n.Chained
	}
	stream, err := st.Events(ctx, skep.Cursor{}, true)
	if err != nil {
		return err
	}
	defer stream.Close()
	c := &checker{st: st, pace: rate.NewLimiter(checkRate, checkRate), waiting: map[skep.NamespaceID][]skep.Key{}}
	events := make([]skep.Event, 256)
	for {
		// A snapshot's end shows only in that nothing more comes.
		wait, cancel := context.WithTimeout(ctx, time.Second)
		n, err := stream.Next(wait, events)
		cancel()
		if err != nil {
			if ctx.Err() == nil && skep.KindOf(err) == skep.Deadline || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				break
			}
			return err
		}
		over := false
		for _, e := range events[:n] {
			switch {
			case e.Kind != skep.EventStored:
				over = true
			case chained[e.Namespace] || e.Salted:
				c.skipped++ // only under its chain's keys, or its salt, could it be asked for
			default:
				c.waiting[e.Namespace] = append(c.waiting[e.Namespace], e.Key)
				if len(c.waiting[e.Namespace]) == checkBatch {
					if err := c.read(ctx, e.Namespace); err != nil {
						return err
					}
				}
			}
		}
		if err := js.step(ctx, j, c.progress(before.Blocks), c.String()); err != nil {
			return err
		}
		if over {
			break
		}
	}
	for ns := range c.waiting {
		if err := c.read(ctx, ns); err != nil {
			return err
		}
	}
	return js.step(ctx, j, 1, c.String())
}

// checker reads blocks and counts what became of them.
type checker struct {
	st      skep.Store
	pace    *rate.Limiter
	waiting map[skep.NamespaceID][]skep.Key

	read0, bytes, damaged, gone, skipped int64
}

func (c *checker) progress(blocks int64) float64 {
	if blocks == 0 {
		return 1
	}
	return min(float64(c.read0+c.skipped)/float64(blocks), 1)
}

func (c *checker) String() string {
	return fmt.Sprintf("%d blocks read, %.1f MiB; %d damaged, %d gone meanwhile, %d of chains or salted not asked for", c.read0, float64(c.bytes)/(1<<20), c.damaged, c.gone, c.skipped)
}

// read restores the keys that wait in ns.
func (c *checker) read(ctx context.Context, ns skep.NamespaceID) (err error) {
	keys := c.waiting[ns]
	c.waiting[ns] = nil
	if len(keys) == 0 {
		return nil
	}
	r := &skep.RestoreRequest{Chains: []skep.Chain{{Scope: skep.Scope{Namespace: ns}, Keys: keys, Priority: -1}}}
	return skep.Load(ctx, c.st, r, func(ch *skep.Chunk) error {
		c.read0++
		c.bytes += ch.Bytes
		switch {
		case ch.Err == nil:
		case skep.KindOf(ch.Err) == skep.Damaged:
			c.damaged++
		default:
			c.gone++
		}
		size := int(min(ch.Bytes, checkRate))
		ch.Release()
		return c.pace.WaitN(ctx, size)
	})
}

// copies is how many copies a namespace has whose maker leaves it to the server.
func (c *Config) copies(namespace string) int {
	if resp.IsDatabase(namespace) {
		return c.Redis.Copies
	}
	return 1
}

func (c *Config) storeOptions() store.Options {
	so := store.Options{
		Dir: c.Dir, CatalogDir: c.Store.CatalogDir, Devices: c.Devices, DeviceCount: c.FileDevices,
		CapacityBytes: int64(c.Store.CapacityBytes), ChangeCapacity: c.Store.ChangeCapacity, BlockBytes: int64(c.Store.BlockBytes),
		CacheBytes: int64(c.Store.DRAMBytes), IOBytes: int64(c.Store.IOBytes), LeasedBytes: int64(c.Store.LeasedBytes),
		PinnedBytes: int64(c.Store.PinnedBytes), TenantNamespaces: c.Store.TenantNamespaces, Policy: c.Store.Policy,
		TenantBytes: c.shares(),
		WriteBudget: int64(c.Store.WriteBudget),
		ScrubRate:   int64(c.Store.ScrubRate), BackgroundRate: int64(c.Store.BackgroundRate),
		Device: device.Options{Backend: c.Store.Backend},
	}
	so.Admin = runtime.GOOS != "windows" // skep top and its like look in through it
	if so.CacheBytes == 0 {
		so.CacheBytes = -1 // none; 0 would be the default
	}
	return so
}

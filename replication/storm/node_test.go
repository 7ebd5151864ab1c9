package storm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/replication"
	"github.com/skepkv/skep/replication/clustermap"
	"github.com/skepkv/skep/replication/consensus"
	"github.com/skepkv/skep/replication/fence"
	"github.com/skepkv/skep/replication/flow"
	"github.com/skepkv/skep/replication/keeper"
	"github.com/skepkv/skep/wire"
	"github.com/skepkv/skep/wire/server"
)

// node is a node's machine, with its disk.
type node struct {
	of   clustermap.Node
	disk *disk
	run  *process // nil: it does not run

	backup *disk // an old copy of its disk; nil: none
}

// process is a node that runs, put together as skep serve does.
type process struct {
	of     clustermap.Node
	disk   *disk
	m      *machine
	own    *own
	keeper *keeper.Keeper
	fence  *fence.Fence
	whole  *replication.Store
	server *server.Server
	member *consensus.Member
	watch  func()
	told   atomic.Uint32
	behind chan struct{}
	wake   chan struct{} // has it repair
	maps   *maps
	log    *slog.Logger
	cancel context.CancelFunc
	wait   sync.WaitGroup
	failed atomic.Pointer[error]
	sent   atomic.Int64 // copies
	tries  atomic.Int64 // repairs that have ended well
	lacks  atomic.Int64 // copies that are missing, by the last one
}

// lent is the node's own Store to the Store of the whole cluster in its process.
type lent struct{ skep.Store }

func (lent) Close() error         { return nil }
func (l lent) Unwrap() skep.Store { return l.Store }

// start has a node run. Found is the first map of a cluster that it founds; nil: it founds none.
func start(
	m *machine, of clustermap.Node, d *disk, found *clustermap.Map, seen *maps, log *slog.Logger,
) (p *process, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	p = &process{of: of, disk: d, m: m, behind: make(chan struct{}, 1), wake: make(chan struct{}, 1), maps: seen, log: log,
		cancel: cancel}
	p.own = d.open(ctx)
	p.keeper = keeper.New(p.own)
	p.fence = fence.New(p.keeper, p.own, of.Name, of.ID)
	began := time.Now()
	p.fence.Clock = func() time.Duration { return time.Since(began) }
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	known := d.knows()
	dial := func(n clustermap.Node) (skep.Store, error) {
		if n.ID == of.ID {
			return lent{p.fence}, nil
		}
		return wire.NewClient(wire.Options{Addr: n.Addr, Conns: 2, Name: "node " + of.Name, DialContext: m.connect, Log: log})
	}
	o := replication.Options{Map: known.Public(), Dial: dial, Memory: p.fence, Log: log}
	for _, n := range o.Map.Nodes {
		st, err := dial(n)
		if err != nil {
			return nil, err
		}
		o.Stores = append(o.Stores, st)
	}
	if p.whole, err = replication.New(o); err != nil {
		return nil, err
	}
	text, err := known.Public().Encode()
	if err != nil {
		return nil, err
	}
	p.server, err = server.New(p.fence, server.Options{ClusterMap: text, Epoch: known.Epoch, Node: of.Name,
		Drain: time.Second, Log: log})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	fs := d.fs
	d.mu.Unlock()
	p.member, err = consensus.Open(consensus.Options{ID: of.ID, Dir: "data/cluster", Listener: m.listen(of.Peer),
		Dial: m.dial, Cluster: d.cluster, Found: found, Known: known, Conns: 64, Logger: log, FS: fs,
		SnapshotsIn: d.snapshotsIn, Threshold: 20, Trailing: 5})
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.cluster = "" // it is written down
	d.mu.Unlock()
	p.told.Store(known.Epoch)
	p.behind <- struct{}{}
	p.watch = p.member.Watch(p.agreed)
	p.wait.Go(func() { p.fence.KeepHeard(ctx, p.isBehind) })
	p.wait.Go(func() { p.comeBack(ctx) })
	p.wait.Go(func() { p.repairs(ctx) })
	p.wait.Go(func() { p.serve(ctx, m.listen(of.Addr)) })
	return p, nil
}

func (d *disk) knows() *clustermap.Map {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known
}

// agreed goes on by a map that is agreed on, and keeps it for the next start.
func (p *process) agreed(m *clustermap.Map) {
	p.maps.saw(p.of.Name, p.member.Cluster(), m)
	if m.Epoch <= p.told.Load() {
		return
	}
	if p.fence.Heard(m) {
		p.isBehind()
	}
	text, err := m.Public().Encode()
	if err == nil {
		err = p.server.SetCluster(text, m.Epoch, 0)
	}
	if err != nil {
		p.failed.Store(&err)
		return
	}
	p.told.Store(m.Epoch)
	p.whole.Hear(m.Public())
	p.disk.mu.Lock()
	defer p.disk.mu.Unlock()
	if p.disk.written == p.own {
		p.disk.known = m
	}
}

func (p *process) isBehind() {
	select {
	case p.behind <- struct{}{}:
	default:
	}
}

// comeBack has the node serve, now and when it was down.
func (p *process) comeBack(ctx context.Context) {
	for {
		select {
		case <-p.behind:
		case <-ctx.Done():
			return
		}
		for p.fence.Return(ctx, p.member) != nil {
			if sleep(ctx, 100*time.Millisecond) != nil {
				return
			}
		}
	}
}

// repairs sends others what they lack, again and again.
func (p *process) repairs(ctx context.Context) {
	look := time.NewTicker(5 * time.Second)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-p.wake:
		case <-ctx.Done():
			return
		}
		got, err := p.whole.Repair(ctx, replication.RepairOptions{Keeper: p.keeper, Pace: flow.Options{Rate: 64 << 20}})
		p.sent.Add(got.Copied)
		if err == nil {
			p.lacks.Store(got.Declined + got.Away + got.Unread)
			p.tries.Add(1)
		}
	}
}

func (p *process) serve(ctx context.Context, l net.Listener) {
	if err := p.server.Serve(ctx, l); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		p.failed.Store(&err)
	}
}

// stop ends the process. After a crash nothing of it is seen or kept any more, and it ends beside what comes after it.
func (p *process) stop() error {
	p.cancel()
	p.watch()
	err := errors.Join(p.whole.Close(), p.member.Close())
	p.wait.Wait()
	if f := p.failed.Load(); f != nil {
		err = errors.Join(err, fmt.Errorf("node %s: %w", p.of.Name, *f))
	}
	return errors.Join(err, p.keeper.Close())
}

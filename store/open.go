package store

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/locate"
	"github.com/skepkv/skep/store/internal/members"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/opening"
	"github.com/skepkv/skep/store/internal/pinned"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/internal/watermark"
	"github.com/skepkv/skep/store/memory"
	"github.com/skepkv/skep/store/segment"
)

// Open opens the store in o.Dir, making it when it is not there.
//
// Errors by kind: Invalid (options, all limits named), Locked (the text says by
// whom), Missing (a device the store has is not there), Foreign (a device of another
// store, or one that holds something else), Version (of another format),
// Damaged, Denied (Options.EncryptionKeys has none for a tenant whose blocks are encrypted;
// the directory is another user's), ReadOnly (its file system is).
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.prepare(); err != nil {
		return nil, err
	}
	metrics, err := register(o.Registerer)
	if err != nil {
		return nil, err
	}
	s, err := openRegistered(ctx, o)
	if metrics == nil {
		return s, err
	}
	if err != nil {
		o.Registerer.Unregister(metrics)
		return nil, err
	}
	s.metrics = metrics
	metrics.Show(observed{s})
	return s, nil
}

func openRegistered(ctx context.Context, o Options) (*Store, error) {
	s := newStore(o)
	err := s.open(ctx)
	if damagedCatalog(err) && !o.ReadOnly && !o.NoRebuild && !o.customDevices {
		o.Logger.Error("the catalog is damaged; it is set aside and made anew from the devices", "error", err)
		known := s.opening.Paths()
		s.discardOpen()
		s = newStore(o)
		s.opening.Aside, s.opening.Known = true, known
		err = s.open(ctx)
	}
	if err != nil {
		s.discardOpen()
		return nil, err
	}
	s.run()
	s.keys.Settle(ctx)
	if o.Admin && !o.ReadOnly {
		if s.admin, err = startAdmin(s); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// register gives a registry the metrics of a store that is about to be opened; nil without one.
func register(r prometheus.Registerer) (*observe.Collector, error) {
	if r == nil {
		return nil, nil
	}
	c := &observe.Collector{}
	err := r.Register(c)
	if err == nil {
		return c, nil
	}
	e := &skep.Error{Op: "open store", Kind: skep.Other, Field: "registerer", Err: err}
	var taken prometheus.AlreadyRegisteredError
	if errors.As(err, &taken) {
		e.Kind, e.Value, e.Err = skep.Conflict, "one with the metrics of another store", nil
		e.Limit = "one for each store, or prometheus.WrapRegistererWith and a label that tells them apart"
	}
	return nil, e
}

func newStore(o Options) *Store {
	s := &Store{options: o}
	s.opened, s.closing = o.Clock(), make(chan struct{})
	s.lasting.Clock = o.Clock
	s.log, s.logTail = observe.WithTail(o.Logger)
	s.catalogRoom = room.New(room.Config{FS: o.CatalogFS, Dir: o.catalogDir(), Clock: o.Clock, After: o.ballastAfter,
		Log: s.log})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.puts = puts.New()
	s.root = watermark.New(s.rootRow)
	s.rows = commit.New(s.log)
	s.gate = gate.New(o.ReadOnly, s.rows.Failed)
	s.opening = s.newOpening()
	s.members = members.New(members.Config{Context: s.ctx, Named: o.customDevices, Timeout: o.OpTimeout, Log: s.log,
		Write: s.opening.WriteSuperblocks})
	s.space = space.New(space.Config{Log: s.log, Context: s.ctx, Closing: s.closing, Background: &s.background,
		Root:     s.root,
		Identity: func() (segment.StoreID, segment.Secret) { return s.opening.ID, s.opening.Secret },
		Changes:  s.rows.Changes(), Drives: s.members.All, Timeout: o.OpTimeout, FileSystem: o.fileSystem, ReserveBytes: o.ReserveBytes,
		BlockPages: int64(layout.PagesOf(o.BlockBytes)), LogicalBlocks: int64(o.LogicalBlocks)})
	s.opening.Members, s.opening.Space = s.members, s.space
	return s
}

func (s *Store) open(ctx context.Context) error {
	root, err := s.opening.Find(ctx)
	s.catalog = s.opening.Catalog
	if err != nil {
		return err
	}
	o := &s.options
	if s.arena, err = pinned.New(memory.Options{IO: o.IOBytes, Cache: o.CacheBytes, MaxBlock: arenaBlock(o.IOBytes)},
		s.members, s.log); err != nil {
		return err
	}
	s.background.Go(func() { s.arena.Run(s.ctx) })
	if o.CacheBytes > 0 {
		if s.cache, err = memory.NewCache(s.arena.Arena, memory.CacheOptions{Now: o.Clock}); err != nil {
			return err
		}
	}
	if s.profile, err = observe.NewProfile(s.options.ReuseSamples); err != nil {
		return err
	}
	if err := s.recover(ctx, root); err != nil || s.options.ReadOnly {
		return err
	}
	if s.opening.Restamp {
		s.members.Restamp()
	}
	return nil
}

// arenaBlock is the largest single buffer: the largest power of two that leaves room
// for a few of them, since callers of Alloc want whole blocks and runs of them.
func arenaBlock(ioBytes int64) int {
	n := int64(2 << 20)
	for n*4 <= ioBytes && n < memory.LimitMaxBlock {
		n *= 2
	}
	return int(n)
}

// run starts the goroutines of an open store. Close ends them.
func (s *Store) run() {
	w := s.options.Workers
	if w == 0 {
		w = runtime.GOMAXPROCS(0)
	}
	for _, d := range s.members.All() {
		s.space.Watch(d)
	}
	s.mends = scrub.New(scrub.Config{Context: s.ctx, Closing: s.closing, Background: &s.background, Gate: s.gate,
		ReadOnly: s.options.ReadOnly, Names: s.names, Catalog: s.catalog, Index: s.index, Space: s.space, Root: s.root,
		Entering: &s.logs.Entering, Counts: &s.count, Works: &s.works, Log: s.log, Bad: &s.badLog,
		Timeout: s.options.OpTimeout, Store: s.opening.ID, Host: mender{s}})
	finds := locate.Config{Context: s.ctx, Background: &s.background, Gate: s.gate, Calls: s.calls, Names: s.names,
		Index: s.index, Space: s.space, Members: s.members, Rows: s.rows, Lookups: s.lookups, Cache: s.cache,
		Keys: s.keys.Keys, Count: &s.count, Log: s.log, Reused: s.ingest.Filter.Use, Bad: &s.badLog}
	if !s.options.ReadOnly {
		finds.RepairSoon = s.mends.RepairSoon
	}
	s.restores.Start(restore.Parts{
		Options: restore.Options{
			Workers: w, OpTimeout: s.options.OpTimeout, CloseTimeout: s.options.closeTimeout, PrefetchBytes: s.options.PrefetchBytes,
			ReadInPlace: s.options.ReadInPlace, FirstCome: s.options.FirstCome, Policy: s.options.RestorePolicy,
		},
		Source: locate.New(finds), Context: s.ctx, Background: &s.background, Log: s.log, Clock: s.options.Clock,
		Arena: s.arena.Arena, Cache: s.cache, Scarce: s.appends.Scarce, Index: s.index, Names: s.names, Count: &s.count,
	})
	s.background.Go(func() { s.wear.Watch(s.closing, wearOf(s.members)) })
	if s.profile != nil {
		s.background.Go(func() { s.profile.Run(s.ctx) })
	}
	s.newMonitor(s.options.rules).Start()
	if s.ingest.Filter != nil {
		s.background.Go(func() { s.ingest.Filter.Run(s.ctx) })
	}
	if !s.options.ReadOnly {
		s.cleaner.Start(&s.background)
		s.moving.Start()
		s.background.Go(func() { s.catalogRoom.Watch(s.closing, s.catalog.Scarce) })
		s.background.Go(s.space.WatchFileSystems)
		s.space.WarnOfCramped()
		s.background.Go(func() {
			s.root.Keep(s.ctx, s.closing, s.options.FlushInterval, s.options.FlushBytes,
				func(ctx context.Context) error { return s.root.Advance(ctx, s.catalog, s.space.FlushAll) }, s.log)
		})
		s.background.Go(s.rows.KeepSynced)
		s.background.Go(func() { s.mends.Repair(s.ctx, s.closing, func() bool { return s.rows.Failed() != nil }) })
		if s.options.ScrubRate > 0 {
			s.background.Go(func() { s.mends.Always(s.options.ScrubRate) })
		}
	}
	info := s.space.SomeDrive().Dev.Info()
	removed := func(d *space.Drive) bool { return d.Removed.Load() }
	s.log.Info("store open", "dir", s.options.Dir, "devices",
		len(slices.DeleteFunc(slices.Clone(s.members.Opened), removed)), "backend", info.Backend, "reason",
		info.Reason,
		"blocks", s.index.Stats().Blocks, "epoch", s.epoch)
}

// damagedCatalog says whether err tells of damage in the catalog's own files, which the
// devices can make good.
func damagedCatalog(err error) bool {
	var e *skep.Error
	if !errors.As(err, &e) || e.Kind != skep.Damaged {
		return false
	}
	ops := []string{"catalog", "open catalog", "read store row", "read owner row", "list rows", "scan blocks", "scan group", "read block row", "read block rows"}
	return slices.Contains(ops, e.Op) || e.Field == "catalog"
}

// newOpening makes what finds the store, or makes it.
func (s *Store) newOpening() *opening.Opening {
	o := &s.options
	return opening.New(opening.Config{Context: s.ctx, Dir: o.Dir, CatalogDir: o.catalogDir(), NamedCatalog: o.CatalogDir,
		Devices: o.Devices, Own: o.customDevices, Count: o.DeviceCount, Given: o.countGiven, Capacity: o.CapacityBytes,
		SegmentBytes: o.SegmentBytes, BlockBytes: o.BlockBytes, Reckon: o.reckonUncapped, ReadOnly: o.ReadOnly,
		MustExist: o.MustExist, NoRebuild: o.NoRebuild, NoStamp: o.noStamp, Refuse: o.Degraded == DegradedNever,
		Whatever: o.Degraded == DegradedAlways, OpenDevice: o.OpenDevice, RemoveList: o.removeList, Timeout: o.OpTimeout,
		Wall: o.Wall, Log: s.log, Room: s.catalogRoom, Root: s.root, Rows: s.rows,
		Settle: func(was catalog.Limits) (catalog.Limits, error) { return o.settle(was, s.log) },
		Options: catalog.Options{FS: o.CatalogFS, CacheBytes: o.CatalogCacheBytes, Logger: o.Logger, OnFailure: s.rows.Fail,
			Timeout: o.catalogWait, Patience: o.catalogScarce, MakeRoom: s.catalogRoom.Drop, Refuse: o.refuseCommits}})
}

// catalogDir is where the catalog is.
func (o *Options) catalogDir() string {
	if o.CatalogDir != "" {
		return o.CatalogDir
	}
	return filepath.Join(o.Dir, "catalog")
}

package store

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/device"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/dirlock"
	"github.com/skepkv/skep/store/internal/gate"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/locate"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/puts"
	"github.com/skepkv/skep/store/internal/restore"
	"github.com/skepkv/skep/store/internal/room"
	"github.com/skepkv/skep/store/internal/scrub"
	"github.com/skepkv/skep/store/internal/segio"
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
		known := s.drivePaths()
		s.discardOpen()
		s = newStore(o)
		s.opening.aside, s.opening.known = true, known
		err = s.open(ctx)
	}
	if err != nil {
		s.discardOpen()
		return nil, err
	}
	s.run()
	if o.Admin && !o.ReadOnly {
		if s.admin, err = s.startAdmin(); err != nil {
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

func noStore(dir string) error {
	return &skep.Error{Op: "open store", Kind: skep.NotFound, Field: "dir", Value: dir,
		Limit: "a store; make one by opening it for writing"}
}

func newStore(o Options) *Store {
	s := &Store{options: o, opened: o.Clock(), closing: make(chan struct{})}
	s.log, s.logTail = observe.WithTail(o.Logger)
	s.catalogRoom = room.New(room.Config{FS: o.CatalogFS, Dir: o.catalogDir(), Clock: o.Clock, After: o.ballastAfter,
		Log: s.log})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.naming = limits.NewTurn()
	s.puts = puts.New()
	s.root = watermark.New(s.rootRow)
	s.rows = commit.New(s.log)
	s.gate = gate.New(o.ReadOnly, s.rows.Failed)
	s.members = s.newMembers()
	s.space = space.New(space.Config{Log: s.log, Context: s.ctx, Closing: s.closing, Background: &s.background,
		Root:     s.root,
		Identity: func() (segment.StoreID, segment.Secret) { return s.id, s.secret },
		Changes:  s.rows.Changes(), Drives: s.members.All, Timeout: o.OpTimeout, FileSystem: o.fileSystem, ReserveBytes: o.ReserveBytes,
		BlockPages: int64(layout.PagesOf(o.BlockBytes)), LogicalBlocks: int64(o.LogicalBlocks)})
	return s
}

func (s *Store) open(ctx context.Context) error {
	o := &s.options
	if !o.ReadOnly {
		if _, err := os.Stat(o.Dir); errors.Is(err, fs.ErrNotExist) {
			if o.MustExist {
				return noStore(o.Dir)
			}
			s.opening.made = append(s.opening.made, o.Dir)
		}
		if err := os.MkdirAll(o.Dir, 0o755); err != nil {
			return dirlock.CannotWrite("open store", o.Dir, err)
		}
		lock, err := dirlock.Take(o.Dir, false)
		if err != nil {
			return err
		}
		s.lock = lock
	}
	if s.opening.aside {
		if err := s.otherFormat(); err != nil {
			return err
		}
		if err := s.setAside("open store"); err != nil {
			return err
		}
	} else if o.CatalogDir != "" && !o.ReadOnly {
		if err := s.catalogPlace("open store").Open(); err != nil {
			s.opening.making = true // nothing is left
			return err
		}
	}
	if err := s.openCatalog(); err != nil {
		return err
	}
	root, err := s.catalog.Store(ctx)
	fresh := skep.KindOf(err) == skep.NotFound
	if err != nil && !fresh {
		return err
	}
	if fresh && o.ReadOnly {
		return noStore(o.Dir)
	}
	if fresh {
		s.opening.making = true
		var rebuilt bool
		if rebuilt, err = s.resume(ctx); rebuilt {
			s.opening.making, fresh = false, false
			root, err = s.catalog.Store(ctx)
		} else if err == nil && o.MustExist {
			err = noStore(o.Dir)
		} else if err == nil {
			root, err = s.create(ctx)
		}
	}
	if !fresh && err == nil {
		if !o.ReadOnly {
			s.clearList()
		}
		s.opening.relog = root.Relog
		if err = s.takeLimits(root.Limits); err == nil {
			err = s.identify(root.StoreID, root.Secret)
		}
		if err == nil {
			err = s.openDrives(ctx)
		}
	}
	if err != nil {
		return err
	}
	if err := s.allocate(); err != nil {
		return err
	}
	if s.profile, err = observe.NewProfile(s.options.ReuseSamples); err != nil {
		return err
	}
	if err := s.recover(ctx, root); err != nil || o.ReadOnly {
		return err
	}
	if s.limits.restamp {
		s.members.Restamp()
	}
	return nil
}

// identify sets what tells this store from others, and what is derived from it.
func (s *Store) identify(id segment.StoreID, secret segment.Secret) error {
	s.id, s.secret = id, secret
	keys, err := crypt.NewKeys(id, s.options.EncryptionKeys)
	s.keys = keybook.New(s.ctx, keys, s.log, s.options.ReadOnly, s.options.OpTimeout)
	return err
}

func (s *Store) openCatalog() (err error) {
	o := &s.options
	dir := o.catalogDir()
	switch st, err := o.CatalogFS.Stat(dir); {
	case err == nil && !st.IsDir():
		return &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: "catalog", Value: dir + ", which is a file",
			Limit: "a directory"}
	case err != nil && !o.ReadOnly:
		s.opening.made = append(s.opening.made, dir)
	}
	opt := catalog.Options{FS: o.CatalogFS, CacheBytes: o.CatalogCacheBytes, Logger: o.Logger, OnFailure: s.rows.Fail,
		Timeout: o.catalogWait, Patience: o.catalogScarce,
		MakeRoom: s.catalogRoom.Drop, Refuse: o.refuseCommits}
	if o.ReadOnly {
		s.catalog, err = catalog.Inspect(dir, opt)
	} else {
		if err := s.catalogRoom.Make(); err != nil {
			return err
		}
		s.catalog, err = catalog.Open(dir, opt)
		if errors.Is(err, syscall.ENOSPC) && s.catalogRoom.Drop() { // less room than it said
			s.catalog, err = catalog.Open(dir, opt)
		}
		err = s.catalogRoom.Explain(err)
	}
	s.space.Catalog = s.catalog
	if errors.Is(err, fs.ErrNotExist) && skep.KindOf(err) == skep.Other { // one of its files is gone
		err = &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: "catalog", Err: err}
	}
	return err
}

// create makes a new store on its devices. The root row comes last: until it is
// there, there is no store.
func (s *Store) create(ctx context.Context) (catalog.StoreState, error) {
	o := &s.options
	var id segment.StoreID
	var secret segment.Secret
	rand.Read(id[:])
	rand.Read(secret[:])
	if err := s.identify(id, secret); err != nil {
		return catalog.StoreState{}, err
	}
	paths := o.Devices
	if len(paths) == 0 {
		for i := range o.DeviceCount {
			paths = append(paths, filepath.Join(o.Dir, fmt.Sprintf("device-%d", i)))
		}
	}
	n := len(paths)
	s.limits.Limits = catalog.Limits{Known: true, Capacity: uint64(o.CapacityBytes), Devices: uint32(n)}
	each := o.CapacityBytes / int64(n) &^ (layout.PageSize - 1)
	reckon := each
	if o.CapacityBytes == 0 {
		reckon = o.reckonUncapped(paths)
	}
	var err error
	if s.space.SegmentBytes, err = o.segmentFor(reckon, n); err != nil {
		return catalog.StoreState{}, o.tooSmall(n, err)
	}
	initial := layout.Segments(each, s.space.SegmentBytes)
	if o.CapacityBytes == 0 {
		initial = max(1, int(min(firstBytes/int64(n), reckon)/s.space.SegmentBytes))
	} else if initial < leastSegments {
		return catalog.StoreState{}, o.tooSmall(n, nil)
	}
	for _, path := range paths { // before anything is made
		if err := places.Free(path, o.customDevices); err != nil {
			return catalog.StoreState{}, err
		}
	}
	list := s.makingList()
	if list != nil {
		s.opening.made = append(s.opening.made, list.Path())
	}
	if err := list.Begin(paths); err != nil {
		return catalog.StoreState{}, &skep.Error{Op: "create store", Kind: skep.Other, Field: list.Path(), Err: err}
	}
	defer s.unbrand()
	b := s.catalog.NewBatch()
	for i, path := range paths {
		d, err := s.createDrive(ctx, i, n, path, layout.SegmentOffset(initial, s.space.SegmentBytes), each)
		if err != nil {
			return catalog.StoreState{}, err
		}
		s.members.Opened = append(s.members.Opened, d)
		st := d.Row()
		b.PutDevice(&st)
	}
	// Not from 1: the number of a namespace that a client kept is nobody's in another store at the same address.
	var first [4]byte
	rand.Read(first[:])
	root := s.root.State(watermark.Numbers{Namespace: binary.LittleEndian.Uint32(first[:]) >> 2}, false)
	b.PutStore(root)
	if err = s.catalog.Commit(ctx, b, true); err != nil {
		return root, err
	}
	s.opening.making = false
	return root, list.End()
}

const (
	// uncappedReckon is the largest device size from which a store without a cap derives its
	// segments.
	uncappedReckon = 4 << 30
	// leastReckon is the smallest: its file system may have more room one day.
	leastReckon = 16 << 20
	// firstBytes is what all devices of a store without a cap begin with.
	firstBytes = 64 << 20
)

// leastSegments is how many a device has at least where a cap says how large it may become: one is written,
// one is cleaned, and one is free.
const leastSegments = 3

// segmentFor is the size of the segments of a new store on n devices of each bytes.
func (o *Options) segmentFor(each int64, n int) (int64, error) {
	if o.SegmentBytes > 0 {
		return o.SegmentBytes, nil
	}
	return layout.SegmentFor(each, o.BlockBytes, n)
}

// tooSmall is the error of a cap that has no room for a store, with the least that has.
func (o *Options) tooSmall(n int, why error) error {
	fits := func(pages int) bool {
		each := int64(pages) * layout.PageSize
		seg, err := o.segmentFor(each, n)
		return err == nil && layout.Segments(each, seg) >= leastSegments
	}
	most := 1
	for !fits(most) && most < 1<<40 {
		most *= 2
	}
	least := int64(sort.Search(most, fits)) * layout.PageSize * int64(n)
	return &skep.Error{Op: "create store", Kind: skep.Invalid, Field: "capacity bytes", Value: o.CapacityBytes,
		Err:   why,
		Limit: fmt.Sprintf("at least %d for blocks of %d bytes on %d devices, or 0 for no cap", least, o.BlockBytes, n)}
}

// createDrive makes or takes over one device and writes its superblocks.
func (s *Store) createDrive(ctx context.Context, i, n int, path string, size, limit int64) (*space.Drive, error) {
	if err := places.Free(path, s.options.customDevices); err != nil {
		return nil, err
	}
	_, err := os.Stat(path)
	exists := err == nil
	dev, err := s.options.OpenDevice(i, path, !exists, size)
	if err != nil {
		return nil, &skep.Error{Op: "create device", Kind: kindOfOpen(err), Field: path, Err: err}
	}
	if !exists {
		s.opening.made = append(s.opening.made, path)
	}
	d := &space.Drive{Index: uint16(i), Path: path, Serial: dev.Info().Serial, SegBytes: s.space.SegmentBytes}
	d.Use(dev)
	rand.Read(d.ID[:])
	if exists {
		if err := segio.CheckBlank(ctx, dev, path); err != nil {
			return d, errors.Join(err, dev.Close())
		}
	}
	have := layout.Segments(dev.Size(), s.space.SegmentBytes)
	if limit > 0 {
		have = min(have, layout.Segments(limit, s.space.SegmentBytes))
	}
	d.Segments, d.Limit = have, have
	if limit == 0 && !dev.Info().Raw {
		d.Limit = space.Unlimited
	}
	if have < 1 {
		return d, errors.Join(skep.Invalidf("create device", "size of "+path, dev.Size(),
			fmt.Sprintf("at least %d", layout.SegmentOffset(1, s.space.SegmentBytes))), dev.Close())
	}
	if err := s.writeSuperblocks(ctx, d, n, 1); err != nil {
		if exists {
			err = errors.Join(err, s.takeBackName(d))
		}
		return d, errors.Join(err, dev.Close())
	}
	return d, nil
}

func (s *Store) writeSuperblocks(ctx context.Context, d *space.Drive, n int, sequence uint64) error {
	d.Sequence = sequence
	if d.Created.IsZero() {
		d.Created = s.options.Wall()
	}
	segments := int(s.space.RowOf(d).Segments)
	sb := segment.Superblock{
		Sequence: sequence, Store: s.id, Device: d.ID, Serial: d.Serial, DeviceIndex: int(d.Index), DeviceCount: n,
		DeviceBytes: layout.SegmentOffset(segments, s.space.SegmentBytes), SegmentBytes: s.space.SegmentBytes,
		FirstSegment: layout.SegmentOffset(0, s.space.SegmentBytes), HashSecret: s.secret, Created: d.Created,
		Capacity: int64(s.limits.Capacity), MadeCount: int(s.limits.Devices),
	}
	if err := segio.WriteSuperblocks(ctx, s.space.Durably(d), &sb); err != nil {
		return &skep.Error{Op: "write superblock", Kind: skep.DeviceFailed, Field: d.Path, Err: err}
	}
	return nil
}

func kindOfOpen(err error) skep.Kind {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return skep.Missing
	case errors.Is(err, device.ErrLocked):
		return skep.Locked
	case skep.KindOf(err) != skep.Other:
		return skep.KindOf(err)
	}
	return skep.DeviceFailed
}

// allocate makes the memory the store works in.
func (s *Store) allocate() error {
	o := &s.options
	var err error
	if err = s.newArena(memory.Options{IO: o.IOBytes, Cache: o.CacheBytes,
		MaxBlock: arenaBlock(o.IOBytes)}); err != nil {
		return err
	}
	if o.CacheBytes > 0 {
		if s.cache, err = memory.NewCache(s.arena, memory.CacheOptions{Now: o.Clock}); err != nil {
			return err
		}
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
		s.watchDrive(d)
	}
	s.mends = scrub.New(scrub.Config{Names: s.names, Catalog: s.catalog, Index: s.index, Space: s.space, Root: s.root,
		Entering: &s.logs.Entering,
		Counts:   &s.count, Log: s.log, Bad: &s.badLog, Timeout: s.options.OpTimeout, Store: s.id, Host: mender{s}})
	s.restores.Start(restore.Parts{
		Options: restore.Options{
			Workers: w, OpTimeout: s.options.OpTimeout, CloseTimeout: s.options.closeTimeout, PrefetchBytes: s.options.PrefetchBytes,
			ReadInPlace: s.options.ReadInPlace, FirstCome: s.options.FirstCome, Policy: s.options.RestorePolicy,
		},
		Source: s.source(), Context: s.ctx, Background: &s.background, Log: s.log, Clock: s.options.Clock,
		Arena: s.arena, Cache: s.cache, Scarce: s.appends.Scarce, Index: s.index, Names: s.names, Count: &s.count,
	})
	s.background.Go(s.watchWear)
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
		s.background.Go(s.watchSpace)
		s.space.WarnOfCramped()
		s.background.Go(s.keepMark)
		s.background.Go(s.rows.KeepSynced)
		s.background.Go(func() { s.mends.Repair(s.ctx, s.closing, func() bool { return s.rows.Failed() != nil }) })
		if s.options.ScrubRate > 0 {
			s.background.Go(s.scrubAlways)
		}
	}
	info := s.space.SomeDrive().Dev.Info()
	s.log.Info("store open", "dir", s.options.Dir, "devices", len(s.members.Opened), "backend", info.Backend, "reason",
		info.Reason,
		"blocks", s.index.Stats().Blocks, "epoch", s.epoch)
}

// source makes what restores see of the store.
func (s *Store) source() source {
	c := locate.Config{Context: s.ctx, Background: &s.background, Names: s.names, Index: s.index, Space: s.space,
		Rows: s.rows, Cache: s.cache, Keys: s.keys.Keys, Count: &s.count, Log: s.log, Bad: &s.badLog}
	if !s.options.ReadOnly {
		c.RepairSoon = s.mends.RepairSoon
	}
	return source{locate.New(c), s}
}

// keepMark flushes now and then, so that little needs verifying after a crash.
func (s *Store) keepMark() {
	tick := time.NewTicker(s.options.FlushInterval / 4)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		n := s.root.Unflushed()
		if n == 0 || n < s.options.FlushBytes && time.Since(last) < s.options.FlushInterval {
			continue
		}
		if err := s.advanceMark(s.ctx); err != nil && s.ctx.Err() == nil {
			s.log.Warn("flush failed", "error", err)
		}
		last = time.Now()
	}
}

// advanceMark flushes every drive and moves the flushed-up-to mark: an unclean open
// trusts what lies at or below it and verifies what lies above.
func (s *Store) advanceMark(ctx context.Context) error {
	return s.root.Advance(ctx, s.catalog, func(ctx context.Context) error {
		return s.space.FlushDrives(ctx, s.space.Unfenced())
	})
}

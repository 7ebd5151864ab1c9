package store

import (
	"context"
	"errors"
	"time"

	"github.com/skepkv/skep/index"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/appender"
	"github.com/skepkv/skep/store/internal/clean"
	"github.com/skepkv/skep/store/internal/commit"
	"github.com/skepkv/skep/store/internal/crypt"
	"github.com/skepkv/skep/store/internal/devlog"
	"github.com/skepkv/skep/store/internal/intents"
	"github.com/skepkv/skep/store/internal/keybook"
	"github.com/skepkv/skep/store/internal/limits"
	"github.com/skepkv/skep/store/internal/lookup"
	"github.com/skepkv/skep/store/internal/moving"
	"github.com/skepkv/skep/store/internal/namespaces"
	"github.com/skepkv/skep/store/internal/naming"
	"github.com/skepkv/skep/store/internal/observe"
	"github.com/skepkv/skep/store/internal/recovery"
	"github.com/skepkv/skep/store/internal/sidecar"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/memory"
)

// recover loads what the catalog holds and, after an unclean end, verifies what the
// flushed-up-to mark does not vouch for. There is no separate checkpoint of the
// index: its rows are one compact range of the catalog, which scans faster than a
// second copy could be kept right (docs/notebook/architecture.md has the figures).
func (s *Store) recover(ctx context.Context, root catalog.StoreState) error {
	s.epoch = root.Epoch + 1
	s.lasting.Begin(s.options.Wall(), root.Lasting, s.log)
	// Numbers given out after the root row was last written are skipped over.
	s.root.Load(root)
	s.space.Pass(root.NextGroup)
	keys, err := crypt.NewKeys(s.opening.ID, s.options.EncryptionKeys)
	if err != nil {
		return err
	}
	s.keys = keybook.New(keybook.Config{Context: s.ctx, Closing: s.closing, Keys: keys, Log: s.log,
		ReadOnly: s.options.ReadOnly, Timeout: s.options.OpTimeout,
		Say: func(ctx context.Context, entries []byte) error {
			return s.appends.Entries(ctx, space.User, s.options.SpaceTimeout, entries)
		}})
	s.names = namespaces.NewTable(s.opening.Secret)
	s.calls = limits.NewCalls(s.options.CallBytes, s.names.Alone)
	s.sidecars = sidecar.New(s.catalog, s.names, s.keys.Keys, s.rows, s.log)
	load := recovery.New(recovery.Config{Catalog: s.catalog, Names: s.names, Space: s.space, Members: s.members,
		Root: s.root, Keys: s.keys, Secret: s.opening.Secret, Log: s.log, ReadOnly: s.options.ReadOnly,
		Alone: s.opening.Lock != nil || s.opening.Exclusive, WithoutKeys: s.options.WithoutKeys,
		Whatever: s.options.Degraded == DegradedAlways, Timeout: s.options.OpTimeout})
	if err := errors.Join(load.Namespaces(ctx), s.keys.Open(ctx, s.catalog, s.names)); err != nil {
		return err
	}
	if err := load.Groups(ctx, root.Clean); err != nil {
		return err
	}
	if err := load.Degraded(ctx); err != nil {
		return err
	}
	if err := load.Behind(ctx, root); err != nil {
		return err
	}
	if err := s.makeIndex(); err != nil {
		return err
	}
	s.events = observe.NewEvents(eventsEpoch(s.opening.ID, s.epoch), s.options.EventBuffer, s.options.Wall)
	promised := intents.New(s.root)
	s.rows.Open(commit.Parts{Context: s.ctx, Closing: s.closing, Catalog: s.catalog, Names: s.names, Index: s.index,
		Space: s.space, Root: s.root, Cache: s.cache, Sidecars: s.sidecars, Intents: promised, Puts: s.puts,
		Events: s.events, Count: &s.count, Bad: &s.badLog, Exact: s.options.Policy != "cost",
		Harden: max(s.options.FlushInterval/100, 5*time.Millisecond)})
	s.appends = appender.New(appender.Config{Space: s.space, Rows: s.rows, Root: s.root, Index: s.index, Puts: s.puts,
		Arena: s.arena.Arena, Scarce: memory.NewScarce(), Count: &s.count, Log: s.log, Full: s.catalogRoom.Full,
		Why: s.catalogRoom.Kind, IOBytes: s.options.IOBytes, SpaceTimeout: s.options.SpaceTimeout,
		OpTimeout: s.options.OpTimeout})
	if err := s.makeIngest(); err != nil {
		return err
	}
	s.logs = devlog.New(devlog.Config{Context: s.ctx, Catalog: s.catalog, Names: s.names, Index: s.index, Space: s.space,
		Rows: s.rows, Root: s.root, Puts: s.puts, Appends: s.appends, Intents: promised, Log: s.log,
		SpaceTimeout: s.options.SpaceTimeout})
	s.naming = naming.New(naming.Config{Context: s.ctx, Closing: s.closing, Background: &s.background, Catalog: s.catalog,
		Names: s.names, Keys: s.keys, Index: s.index, Root: s.root, Rows: s.rows, Logs: s.logs, Events: s.events,
		Wait: 2 * s.options.OpTimeout, PerTenant: s.options.TenantNamespaces, Wall: s.options.Wall})
	s.cleaner = s.newCleaner()
	o := &s.options
	s.moving = moving.New(moving.Config{Context: s.ctx, Closing: s.closing, Background: &s.background, Gate: s.gate,
		Catalog: s.catalog, Names: s.names, Index: s.index, Space: s.space, Members: s.members, Rows: s.rows,
		Appends: s.appends, Cleaner: s.cleaner, Works: &s.works, Count: &s.count, Log: s.log, Full: s.catalogRoom.Full,
		Every: o.taskEvery, Retry: o.taskRetry, Rate: o.BackgroundRate, NoRebalance: o.NoRebalance,
		OpTimeout: o.OpTimeout})
	doubtful, err := load.Blocks(ctx, root, s.index)
	if err != nil {
		return err
	}
	s.space.SealFound(load.TickOf)
	if s.options.ReadOnly {
		return nil
	}
	b := s.catalog.NewBatch()
	if err := s.opening.Claim(b); err != nil {
		return err
	}
	if err := s.root.Save(ctx, s.catalog, b, true); err != nil {
		return err
	}
	s.opening.Stamp(ctx, s.members.Opened...)
	if err := load.Verify(ctx, doubtful); err != nil {
		return err
	}
	if err := s.sidecars.Load(ctx); err != nil {
		return err
	}
	b = s.catalog.NewBatch()
	changed, err := load.Agree(ctx, b, s.logs, root.Clean, s.opening.Relog)
	if err != nil || !changed {
		return err
	}
	s.opening.Relog = false
	return s.root.Save(ctx, s.catalog, b, true)
}

// newCleaner makes what makes free groups.
func (s *Store) newCleaner() *clean.Cleaner {
	return clean.New(clean.Config{Context: s.ctx, Closing: s.closing, Catalog: s.catalog, Names: s.names, Index: s.index,
		Space: s.space, Rows: s.rows, Root: s.root, Appends: s.appends, Logs: s.logs, Count: &s.count, Log: s.log,
		Clock: s.options.Clock, Tight: func() bool { return s.options.indexTight(s.index) }, Exact: s.options.Policy != "cost", SpaceTimeout: s.options.SpaceTimeout,
		Expire: s.lookups.Expire,
		Sweep: func() {
			s.lasting.Note(func() error { return s.root.Save(s.ctx, s.catalog, s.catalog.NewBatch(), false) })
			if err := s.sidecars.Sweep(s.ctx); err != nil {
				s.log.Warn("side rows of blocks that are gone are still there", "error", err)
			}
		}})
}

// cleanerReserve is how many free groups only the cleaner may open: with one it can
// always move survivors and free their group.
const cleanerReserve = 1

// readTimeOfSlot is the eighth of what the cost policy reckons a page at.
const readTimeOfSlot = time.Microsecond / layout.SlotsPerPage

// makeIndex makes the empty index, sized by what the devices may hold.
func (s *Store) makeIndex() (err error) {
	o := &s.options
	s.space.KeptFree = cleanerReserve
	pages, logical := s.space.Reckon()
	if o.leasedByRoom {
		o.LeasedBytes = min(o.LeasedBytes, max(s.space.EvenPages()*layout.PageSize/4, 1))
		o.PinnedBytes = min(o.PinnedBytes, max(o.LeasedBytes/2, 1))
	}
	cfg := index.Config{Policy: o.Policy, LeaseCapBytes: o.LeasedBytes, PinCapBytes: o.PinnedBytes}
	cfg.PageBytes = layout.SlotSize // a small value is charged its part of a page
	cfg.Cost.PerPage = readTimeOfSlot
	cfg.CapacityPages, cfg.LogicalPages = pages*layout.SlotsPerPage, logical*layout.SlotsPerPage
	capped := pages
	if len(s.space.Uncapped()) > 0 { // cleaning makes room in the index before they have grown so far
		capped = 0
	}
	if err := o.capIndex(capped); err != nil {
		return err
	}
	cfg.MaxSlots = uint32(min(o.IndexBytes/index.BytesPerBlock(o.Policy), 1<<32-1))
	if s.index, err = index.New(cfg); err != nil {
		return err
	}
	s.space.Index = s.index
	if groups, _ := s.space.Count(); groups > 0 {
		s.index.SetClock(recovery.Ticks)
	}
	s.lookups = lookup.New(lookup.Config{Names: s.names, Index: s.index, Rows: s.rows, Space: s.space, Members: s.members,
		Puts: s.puts, Cache: s.cache, Restores: &s.restores, Count: &s.count, Profile: s.profile, Clock: o.Clock,
		Epoch: s.epoch})
	for name, bytes := range o.TenantBytes {
		if err := s.index.SetShare(s.names.TenantNumber(name), bytes); err != nil {
			return err
		}
	}
	return nil
}

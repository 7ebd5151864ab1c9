package store

import (
	"context"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/opening"
	"github.com/skepkv/skep/store/internal/paths"
	"github.com/skepkv/skep/store/internal/places"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// What a path of a new device is: something that was there before is told from what is to be made, before anything is.

// Kinds of a Candidate.
const (
	CandidateFile  = "file"         // it is to be made
	CandidateBlock = "block device" // it is taken whole
)

// Candidate is what a new device would be.
type Candidate struct {
	Kind   string
	Bytes  int64
	Serial string // of a block device, where the system knows it
}

// LookAtDevice says what AddDevices would add, and refuses what it would refuse; it changes nothing.
func (s *Store) LookAtDevice(ctx context.Context, a NewDevice) (c Candidate, err error) {
	defer func() {
		if err == nil && !a.Smaller {
			err = s.opening.CheckRoom(a.Path, layout.Segments(c.Bytes, s.space.SegmentBytes))
		}
	}()
	if err := s.gate.Enter(ctx); err != nil {
		return c, err
	}
	defer s.gate.Leave()
	if err := refuseOwn(s.opening.ID, s.members.All(), a.Path); err != nil {
		return c, err
	}
	if err := places.Free(a.Path, s.options.customDevices); err != nil {
		return c, err
	}
	segments, err := s.opening.SegmentsOf(a.Bytes)
	if err != nil {
		return c, err
	}
	if isNew, err := paths.IsNew(a.Path); err != nil {
		return c, &skep.Error{Op: "add device", Kind: opening.KindOfOpen(err), Field: a.Path, Err: err}
	} else if isNew {
		return Candidate{Kind: CandidateFile, Bytes: layout.SegmentOffset(segments, s.space.SegmentBytes)}, nil
	}
	o := s.options
	o.ReadOnly = false // it is looked at as it would be opened: is it in use, may it be written to
	if !o.customDevices {
		o.OpenDevice = o.openFile
	}
	dev, err := o.OpenDevice(len(s.members.All()), a.Path, false, 0)
	if err != nil {
		return c, &skep.Error{Op: "add device", Kind: opening.KindOfOpen(err), Field: a.Path, Err: err}
	}
	defer dev.Close()
	// else an add was cut short
	if sb, err := segio.PeekSuperblock(a.Path); err != nil || sb.Store != s.opening.ID || s.members.Knows(sb.Device) {
		if err := segio.CheckBlank(ctx, dev, a.Path); err != nil {
			return c, err
		}
	}
	return Candidate{Kind: CandidateBlock, Bytes: dev.Size(), Serial: dev.Info().Serial}, nil
}

// refuseOwn refuses a path of a device that the store id has: nothing of it is in the way.
func refuseOwn(id segment.StoreID, drives []*space.Drive, path string) error {
	sb, err := segio.PeekSuperblock(path)
	if err != nil || sb.Store != id {
		return nil
	}
	for _, d := range drives {
		if segment.DeviceID(d.ID) == sb.Device && !d.Removed.Load() {
			return &skep.Error{Op: "add device", Kind: skep.Conflict, Field: path,
				Value: "device " + itoa(int(d.Index)) + " of this store already",
				Limit: "one that it does not have; leave this one as it is, the store is using it (skep device list)"}
		}
	}
	return nil
}

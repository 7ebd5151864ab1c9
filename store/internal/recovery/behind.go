package recovery

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/store/catalog"
	"github.com/skepkv/skep/store/internal/segio"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// A catalog can be whole and too old: Pebble takes damage in its log's end for the end of
// the log, and a copy of the directory may have been put back. What it says was true
// once. Two things on the devices are written only after the catalog has synced what
// they say, so either of them, when the catalog does not know it, proves that it is
// behind:
//
//   - a group's header, by its sequence number: the root row covers it before it is written;
//     and the group's own row is there from before its header is written until after that
//     is marked as freed
//   - a mark, in every append and one more at an orderly end: the root row's flushed-up-to
//     mark reached it before

// errBehind makes an open set the catalog aside.
func errBehind(field string, value, limit any) error {
	return &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: "catalog",
		Value: "older than the devices: " + field, Limit: "as new", Err: &skep.Error{Op: "open catalog", Kind: skep.Damaged, Field: field, Value: value, Limit: limit}}
}

// Behind compares the catalog with the devices' newest headers and marks.
func (ld *Loader) Behind(ctx context.Context, root catalog.StoreState) error {
	if !ld.Alone {
		return nil // another process may be writing
	}
	for _, d := range ld.Members.Opened {
		if d.Absent != nil {
			continue
		}
		var mu sync.Mutex
		var strange []segment.Header
		ld.Space.ReadHeaders(ctx, d, d.Free, func(_ uint32, h *segment.Header, err error) {
			if err == nil && h.Flags&segment.HeaderFreed == 0 && !ld.leftFree[h.Group] {
				mu.Lock()
				strange = append(strange, *h)
				mu.Unlock()
			}
		})
		for i := range strange {
			h := &strange[i]
			if h.Seq >= root.NextSeq {
				return errBehind("sequence number of a header on "+d.Path, h.Seq, root.NextSeq)
			}
			if ld.goneElsewhere(ctx, h) {
				ld.leftFree[h.Group] = true // the drive was away when the others were told
				continue
			}
			if used, err := ld.hasLog(ctx, d, h); used || err != nil {
				return errors.Join(errBehind("segment "+strconv.Itoa(int(h.Segment))+" of "+d.Path, "of group "+strconv.Itoa(int(h.Group)), "of a group the catalog has"), err)
			}
		}
	}
	for _, g := range ld.wasOpen {
		var mark uint64
		err := ld.Space.ScanGroupLogs(ctx, g, func(_ *segment.Append, e segment.Entry) error {
			if e.Kind == segment.KindMark {
				if m, err := segment.DecodeMark(e.Body); err == nil {
					mark = max(mark, m.Flushed)
				}
			}
			return nil
		})
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			continue // a drive that fails proves nothing
		}
		if mark > root.FlushedSeq {
			return errBehind("mark in the log of group "+strconv.Itoa(int(g.Num)), mark, root.FlushedSeq)
		}
	}
	return nil
}

// goneElsewhere says whether the header of another segment of h's group tells that the
// group is gone: it is marked as freed, or a later group has taken its place. One that lay on a
// drive of which the catalog says that it was removed was gone before that.
func (ld *Loader) goneElsewhere(ctx context.Context, h *segment.Header) bool {
	gone := slices.ContainsFunc(h.Devices, func(slot segment.Slot) bool {
		return int(slot.Device) < len(ld.Members.Opened) && ld.Members.Opened[slot.Device].Removed.Load()
	})
	for _, slot := range h.Devices {
		if int(slot.Device) >= len(ld.Members.Opened) || ld.Members.Opened[slot.Device].Absent != nil || ld.Members.Opened[slot.Device].ID == h.Device {
			continue
		}
		ld.Space.ReadHeaders(ctx, ld.Members.Opened[slot.Device], []uint32{slot.Segment}, func(_ uint32, o *segment.Header, err error) {
			if err == nil {
				gone = gone || o.Group == h.Group && o.Flags&segment.HeaderFreed != 0 || o.Group != h.Group && o.Seq > h.Seq
			}
		})
	}
	return gone
}

// hasLog says whether anything was ever appended under a header. A group that was made
// ready and never used has none.
func (ld *Loader) hasLog(ctx context.Context, d *space.Drive, h *segment.Header) (bool, error) {
	l := segio.Log{Drive: d.IO(), Segment: h.Segment, ID: h.LogID(ld.Secret)}
	end, err := segio.ScanLog(ctx, l, segio.LogBuffer(), ld.Timeout, func(*segment.Append) error { return nil })
	if skep.KindOf(err) == skep.DeviceFailed || skep.KindOf(err) == skep.Deadline {
		return false, nil // a drive that fails proves nothing
	}
	return end.Appends > 0, err
}

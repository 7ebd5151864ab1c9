package locate

import (
	"bytes"

	"github.com/skepkv/skep"
	"github.com/skepkv/skep/layout"
	"github.com/skepkv/skep/store/internal/locks"
	"github.com/skepkv/skep/store/internal/space"
	"github.com/skepkv/skep/store/segment"
)

// When the catalog has failed, reads go on: the records that it had lie in the logs of the
// groups, too. Nothing changes any more in a store that has failed, so what a log said
// once is kept.

// logCache is what the logs of some groups say of blocks.
type logCache struct {
	mu     locks.Mutex[locks.LogCache]
	groups map[uint32]map[recordKey][][]byte // encoded records
	bytes  int
}

// recordKey names a block.
type recordKey struct {
	key skep.Key
	tag segment.SaltTag
	ins uint32
}

// logCacheBytes bounds it; past that it begins anew.
const logCacheBytes = 64 << 20

// recordsFromLogs describes those of list, at the given places, that are pinned and whose
// record has not been read.
func (l *Finder) recordsFromLogs(list []sought, at []int) error {
	var rec segment.Record
	for _, k := range at {
		f, c := &list[k].Located, list[k].by
		if f.Err != errUnread {
			continue
		}
		records, err := l.loggedRecords(f.Stripe.(*space.Group))
		if err != nil {
			return err
		}
		var match []byte
		for _, b := range records[recordKey{c.Keys[f.Block], segment.SaltTag(c.Tag), c.NS.Instance}] {
			h, err := segment.DecodeHead(b)
			if err != nil {
				continue
			}
			if h.Copies == 0 != (f.At.Device == space.InlineDevice) {
				continue
			}
			p := h.Place
			if h.Copies > 0 && (layout.Location{Group: p.Group, Page: p.Page, Device: p.Device, Sub: p.Sub}) != f.At {
				continue
			}
			if match != nil && !bytes.Equal(match, b) {
				match = nil // several values of one key: the catalog knew which
				break
			}
			match = b
		}
		if match == nil || segment.DecodeRecord(match, &rec) != nil {
			f.Err = &skep.Error{Op: "restore", Kind: skep.Failed, Field: "catalog"}
			continue
		}
		f.Err = l.describeFound(c, f, &rec)
	}
	return nil
}

// loggedRecords gives what a group's logs say. The group is pinned.
func (l *Finder) loggedRecords(g *space.Group) (map[recordKey][][]byte, error) {
	c := &l.logs
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.groups[g.Num]; m != nil {
		return m, nil
	}
	m := map[recordKey][][]byte{}
	n := 0
	err := l.Space.ScanGroupLogs(l.Context, g, func(_ *segment.Append, e segment.Entry) error {
		if e.Kind != segment.KindBlock {
			return nil
		}
		h, err := segment.PeekHead(e.Body)
		if err != nil {
			return nil
		}
		k := recordKey{h.Key, h.SaltTag, h.Instance}
		m[k] = append(m[k], bytes.Clone(e.Body))
		n += len(e.Body)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if c.groups == nil || c.bytes+n > logCacheBytes {
		c.groups, c.bytes = map[uint32]map[recordKey][][]byte{}, 0
	}
	c.groups[g.Num] = m
	c.bytes += n
	return m, nil
}

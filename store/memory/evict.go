package memory

import (
	"math"
	"slices"
	"time"
)

// reclaim implements reclaimer.
func (c *Cache) reclaim(w want) (freed int64, retry time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.opts.Now()
	if w.window == 0 {
		freed = c.makeRoomLocked(w.bytes, nil)
	} else {
		freed = c.clearWindowLocked(w.window, now)
	}
	if freed > 0 {
		return freed, 0
	}
	// All other changes for the better come with a kick; a deadline just passes.
	for _, e := range c.mu.pinned {
		if left := e.protectedUntil().Sub(now); left > 0 && !e.dirty && (retry == 0 || left < retry) {
			retry = left
		}
	}
	return 0, retry
}

// makeRoomLocked evicts in the order of the ranking until need bytes are free:
// first what nobody pins, then what expired handles pin. If all of that is not
// enough it evicts nothing. except, which may be nil, is not evicted unless it is
// pinned. It returns the bytes freed.
func (c *Cache) makeRoomLocked(need int64, except *entry) (freed int64) {
	victims, found := c.coldestLocked(need, math.MaxInt, except)
	var held []*entry
	if found < need {
		held = c.expiredLocked(c.opts.Now())
		for i, e := range held {
			if found >= need {
				held = held[:i]
				break
			}
			found += e.charged
		}
	}
	if found < need {
		c.refileLocked(victims)
		return 0
	}
	for _, e := range victims {
		c.mu.ranking.evicted(&e.node)
		freed += c.evictLocked(e)
	}
	for _, e := range held {
		freed += c.evictLocked(e)
	}
	return freed
}

// coldestLocked takes the least worth candidates out of the ranking, as many as
// hold need bytes but no more than limit. Candidates that turn out to be pinned
// leave the ranking until they are released; those whose buffers somebody uses,
// and except, stay.
func (c *Cache) coldestLocked(need int64, limit int, except *entry) (victims []*entry, found int64) {
	var busy []*entry
	for found < need && len(victims) < limit {
		n := c.mu.ranking.coldest()
		if n == nil {
			break
		}
		c.mu.ranking.unfile(n)
		e := n.entry
		switch {
		case len(e.handles) > 0:
		case e == except || !e.idle():
			busy = append(busy, e)
		default:
			victims = append(victims, e)
			found += e.charged
		}
	}
	c.refileLocked(busy)
	return victims, found
}

func (c *Cache) refileLocked(es []*entry) {
	for _, e := range es {
		c.mu.ranking.file(&e.node)
	}
}

// expiredLocked lists the pinned entries that may be revoked, the coldest first.
func (c *Cache) expiredLocked(now time.Time) (es []*entry) {
	for _, e := range c.mu.pinned {
		if c.evictableLocked(e, true, now) {
			es = append(es, e)
		}
	}
	slices.SortFunc(es, byRank)
	return es
}

func byRank(a, b *entry) int { return a.node.rank.compare(b.node.rank) }

// evictableLocked reports whether e can go now; mayRevoke says whether handles
// past their deadline count as none.
func (c *Cache) evictableLocked(e *entry, mayRevoke bool, now time.Time) bool {
	if e.dirty || !e.idle() {
		return false
	}
	return len(e.handles) == 0 || mayRevoke && !e.protectedUntil().After(now)
}

// evictLocked frees e, revoking the handles it may have, and returns the bytes,
// or 0 if a holder is reading just now.
func (c *Cache) evictLocked(e *entry) int64 {
	if len(e.handles) > 0 {
		lost, moved, ok := e.revoke()
		if !ok {
			return 0
		}
		c.mu.stats.Revocations += lost
		c.mu.stats.Spills += moved
		linked := e.linked
		c.unpinnedLocked(e)
		if !linked {
			return e.charged // was removed already, and is free now
		}
	}
	c.mu.stats.Evictions++
	c.discardLocked(e)
	return e.charged
}

// clearWindowLocked makes one aligned run of pages free. Evicting in order until
// a run happens to open would empty the cache when small entries are scattered
// over it, so whole windows are looked at: those around the coldest entries, of
// which the one whose loss costs least is taken, or else the first anywhere that
// can be cleared at all. It returns the bytes freed.
func (c *Cache) clearWindowLocked(pages int, now time.Time) (freed int64) {
	for _, mayRevoke := range []bool{false, true} {
		es := c.coldWindowLocked(pages, mayRevoke, now)
		if es == nil {
			es = c.anyWindowLocked(pages, mayRevoke, now)
		}
		if len(es) == 0 {
			continue
		}
		// The others leave for where they stand and not for their rank: only the
		// coldest ages what stays.
		coldest := slices.MinFunc(es, byRank)
		c.mu.ranking.evicted(&coldest.node)
		for _, e := range es {
			freed += c.evictLocked(e)
		}
		if freed > 0 {
			return freed
		}
	}
	return 0
}

func (c *Cache) coldWindowLocked(pages int, mayRevoke bool, now time.Time) (best []*entry) {
	const candidates = 16
	cold, _ := c.coldestLocked(math.MaxInt64, candidates, nil)
	least := 0.0
	for _, e := range cold {
		for _, b := range e.bufs {
			es, loss := c.windowLocked(b.page&^(pages-1), pages, mayRevoke, now)
			if es != nil && (best == nil || loss < least) {
				best, least = es, loss
			}
		}
	}
	c.refileLocked(cold)
	return best
}

func (c *Cache) anyWindowLocked(pages int, mayRevoke bool, now time.Time) []*entry {
	windows := len(c.arena.mem) / PageSize / pages
	for range windows {
		c.mu.cursor = (c.mu.cursor + 1) % windows
		if es, _ := c.windowLocked(c.mu.cursor*pages, pages, mayRevoke, now); es != nil {
			return es
		}
	}
	return nil
}

// windowLocked returns the entries that stand in a window and what losing them
// costs, or nil when something else stands there too or nothing does.
func (c *Cache) windowLocked(page, pages int, mayRevoke bool, now time.Time) (es []*entry, loss float64) {
	bufs, ok := c.arena.occupants(page, pages, func(p int) *Buffer {
		b := c.mu.pages[p]
		if b == nil || !c.evictableLocked(b.owner, mayRevoke, now) {
			return nil
		}
		return b
	})
	if !ok {
		return nil, 0
	}
	for _, b := range bufs {
		if !slices.Contains(es, b.owner) {
			es = append(es, b.owner)
			loss += c.mu.ranking.worth(&b.owner.node)
		}
	}
	return es, loss
}

package memory

// Share returns the buffers of version v of id with a reference added to each, for a
// write to a device that must read just this value; the caller releases each one. Until
// then its memory stays, whatever becomes of the entry. False: that version is not
// cached any more.
func (c *Cache) Share(id ID, v Version) ([]*Buffer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.findLocked(id)
	if e == nil || e.version != v {
		return nil, false
	}
	bufs := make([]*Buffer, len(e.bufs))
	for i, b := range e.bufs {
		if b.Retain() != nil { // the entry's own reference is there: this cannot be
			for _, kept := range bufs[:i] {
				kept.Release()
			}
			return nil, false
		}
		bufs[i] = b
	}
	return bufs, true
}

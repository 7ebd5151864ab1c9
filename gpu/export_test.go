package gpu

// OnWay is how many bytes of host memory streams may yet copy from.
func (s *Store) OnWay() int64 {
	w := &s.tier.way
	w.collect()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

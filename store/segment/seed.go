package segment

// Of is the seed of granule index: xxh3-64 of the granule's bytes under it is Sum. It
// lets someone who holds the bytes alone compare them with what was computed when they
// were put.
func (s Seed) Of(index int) uint64 { return s.of(index) }

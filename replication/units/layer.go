package units

// Layer counts what became of a layer's chunks.
type Layer struct{ done, loaded int }

// Answered notes one of so many chunks, and says whether it was the last of them, and none was loaded.
func (l *Layer) Answered(loaded bool, of int) (missed bool) {
	if l.done++; loaded {
		l.loaded++
	}
	return l.done == of && l.loaded == 0
}

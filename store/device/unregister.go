package device

// ArenaUnregistrar is a device that can forget memory it was told about.
type ArenaUnregistrar interface {
	// UnregisterArena undoes RegisterArena of the same memory, into which no op is under
	// way. Memory that is not registered is left alone.
	UnregisterArena(mem []byte)
}

// UnregisterArena undoes RegisterArena with the first device under d that can.
func UnregisterArena(d Device, mem []byte) {
	for ; d != nil; d = d.Unwrap() {
		if r, ok := d.(ArenaUnregistrar); ok {
			r.UnregisterArena(mem)
			return
		}
	}
}

package resp

// times is one reading of the server's clocks, in milliseconds. Keys expire by Options.Clock,
// which never goes back; a client that names a moment means the machine's clock.
type times struct {
	clock int64 // since 1970, by Options.Clock
	ahead int64 // of the machine's clock; 0 where they agree to a second
}

func (s *Server) times() times {
	t := times{clock: s.o.Clock().UnixMilli()}
	t.ahead = t.clock - s.o.Wall().UnixMilli()
	if -1000 < t.ahead && t.ahead < 1000 { // a name for a moment stays what it is
		t.ahead = 0
	}
	return t
}

package link

import "time"

// Pace is how much longer a peer may keep a session waiting: for credit, for a free entry of the ring, for room in
// the connection. It begins with all there is. Waiting takes from it, what moves meanwhile gives back, at the
// least rate: who takes its bytes at that rate or faster can go on for ever, and who takes one now and then cannot.
type Pace struct {
	most, Left time.Duration
	rate       int // bytes a second
}

// NewPace begins with all the time there is.
func NewPace(most time.Duration, rate int) Pace { return Pace{most, most, rate} }

// TimeOf is how long n bytes take at rate.
func TimeOf(n int64, rate int) time.Duration {
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// Waited says that it took so long until n bytes had moved. False: the patience is at its end.
func (p *Pace) Waited(took time.Duration, n int64) bool {
	p.Left = min(p.most, p.Left-took+TimeOf(n, p.rate))
	return p.Left >= 0
}

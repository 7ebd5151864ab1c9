package wire

import "time"

// pace is how much longer a peer may keep a session waiting: for credit, for a free entry of the ring, for room in
// the connection. It begins with all there is. Waiting takes from it, what moves meanwhile gives back, at the
// least rate: who takes its bytes at that rate or faster can go on for ever, and who takes one now and then cannot.
type pace struct {
	most, left time.Duration
	rate       int // bytes a second
}

func newPace(most time.Duration, rate int) pace { return pace{most, most, rate} }

// timeOf is how long n bytes take at rate.
func timeOf(n int64, rate int) time.Duration {
	return time.Duration(float64(n) / float64(rate) * float64(time.Second))
}

// waited says that it took so long until n bytes had moved. False: the patience is at its end.
func (p *pace) waited(took time.Duration, n int64) bool {
	p.left = min(p.most, p.left-took+timeOf(n, p.rate))
	return p.left >= 0
}

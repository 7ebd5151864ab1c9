package health

// State is how far a drive is to be relied on. A greater one is worse.
type State int32

const (
	Healthy State = iota
	Slow          // read elsewhere where that is possible
	Fenced        // takes no new groups; read only where there is no other copy
	Dead          // not even that: it is gone, or does not answer

	states = iota
)

func (s State) String() string {
	return [...]string{"ok", "slow", "fenced", "dead"}[s]
}

// transitions says from which state, the row, a drive may come into which.
var transitions = [states][states]bool{
	Healthy: {Slow: true, Fenced: true, Dead: true},
	Slow:    {Healthy: true, Fenced: true, Dead: true},
	Fenced:  {Healthy: true, Dead: true},
	Dead:    {Healthy: true},
}

package coact

// Measure is how the distance of two entries comes from their counts.
type Measure uint8

const (
	// Cosine is 1 - f_ij/√(f_i·f_j), ours.
	Cosine Measure = iota
	// Jaccard is 1 - f_ij/(f_i+f_j-f_ij).
	Jaccard
	// GivenMedoid is 1 - f_ij/f_i, i the medoid: how rarely j comes with it. Not symmetric.
	GivenMedoid
	// RowSum is 1 - f_ij/Σ_k f_ik, i the medoid: eq. 2 read with a sum over a row.
	RowSum
	// GlobalSum is 1 - f_ij/Σ_ij f_ij: eq. 2 read with a sum over the matrix.
	GlobalSum
	numMeasures
)

var measureText = [...]string{"cosine", "jaccard", "given-medoid", "row-sum", "global-sum"}

func (m Measure) String() string {
	if int(m) < len(measureText) {
		return measureText[m]
	}
	return "measure"
}

// Measures lists them all.
func Measures() []Measure {
	all := make([]Measure, numMeasures)
	for i := range all {
		all[i] = Measure(i)
	}
	return all
}

// Distance of entries i and j of the same layer; 1 where one of them was never active.
func (b *Bits) Distance(i, j int) float64 {
	return 1 - float64(b.Both(i, j))*b.inv[i]*b.inv[j]
}

// sums are what the readings of eq. 2 divide by: for each entry Σ_k f_ik over k ≠ i, and
// their total.
type sums struct {
	row   []float64
	total float64
}

func (b *Bits) sums() sums {
	active := make([]float64, b.steps)
	for e := range b.entries {
		each(b.row(e), func(t int) { active[t]++ })
	}
	s := sums{row: make([]float64, b.entries)}
	for e := range b.entries {
		each(b.row(e), func(t int) { s.row[e] += active[t] - 1 })
		s.total += s.row[e]
	}
	return s
}

// distance under a measure; sums are used by RowSum and GlobalSum only.
func (b *Bits) distance(m Measure, s sums, i, j int) float64 {
	if m == Cosine {
		return b.Distance(i, j)
	}
	f := float64(b.Both(i, j))
	var of float64
	switch m {
	case Jaccard:
		of = float64(b.count[i]) + float64(b.count[j]) - f
	case GivenMedoid:
		of = float64(b.count[i])
	case RowSum:
		of = s.row[i]
	case GlobalSum:
		of = s.total
	}
	if of == 0 {
		return 1
	}
	return 1 - f/of
}

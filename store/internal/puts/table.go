package puts

// Table is the puts of a store that are under way. Make it with New.
type Table struct {
	Flights  *Flights
	Rivals   Rivals
	Records  *Records
	Accepted Accepted
}

// New has none under way.
func New() *Table { return &Table{Flights: NewFlights(), Records: NewRecords()} }

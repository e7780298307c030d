CREATE TABLE customers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    email TEXT, -- where invoices are sent
    tier TEXT NOT NULL -- standard or premium
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (id),
    amount REAL NOT NULL, -- in euros
    status TEXT NOT NULL -- paid, open or cancelled
);
INSERT INTO customers VALUES
    (1, 'Ada', 'ada@example.org', 'premium'), (2, 'Ben', 'ben@example.org', 'standard'),
    (3, 'Cleo', 'cleo@example.org', 'premium'), (4, 'Dan', NULL, 'standard');
INSERT INTO orders VALUES
    (1, 1, 120.0, 'paid'), (2, 1, 80.5, 'paid'), (3, 2, 310.0, 'paid'), (4, 3, 45.0, 'open'),
    (5, 3, 99.9, 'paid'), (6, 4, 12.0, 'cancelled'), (7, 2, 20.0, 'paid');

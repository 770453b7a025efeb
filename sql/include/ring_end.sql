\set ECHO none
\c contrib_regression
ALTER DATABASE :db IS_TEMPLATE false;
DROP DATABASE :db;
